"""The conformance tests: this is all that an engine's author writes to run them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from luce_core.device import Device
from luce_core.engine import EngineLimits, LoadContext
from luce_core.ops.core_ops import core_registry
from luce_core.sampling.sampler import Sampler
from luce_core.testing.engine_conformance import *  # noqa: F403
from luce_core.testing.engine_conformance import EngineUnderTest
from luce_core.weights.gguf_file import GgufFile

SLOTS, BLOCKS = 4, 48


@pytest.fixture(scope="module")
def engine_under_test(installed: Path, gguf: GgufFile) -> Iterator[EngineUnderTest]:
    device = Device.parse("cpu")
    context = LoadContext(
        gguf=gguf,
        device=device,
        ops=core_registry().binder(device, torch.float32),
        limits=EngineLimits(max_slots=SLOTS),
        sampler=lambda vocab_size: Sampler(SLOTS, vocab_size),
        settings=None,
        progress=lambda done, total, what: None,
    )
    sys.path.insert(0, str(installed))
    try:
        from minimal_engine import build

        engine = build(context)
        engine.allocate(BLOCKS)
        # Votes are small whole numbers and halves, so that not even rounding may differ.
        yield EngineUnderTest(
            engine=engine, pool_blocks=BLOCKS, prompt_ids=range(ord("a"), ord("h")), exact=True
        )
        engine.close()
    finally:
        sys.path.remove(str(installed))
