"""luce's conformance kit with experts on two devices: exact ops, one thread for each device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from luce_core.testing.engine_conformance import *  # noqa: F403
from luce_core.testing.engine_conformance import EngineUnderTest

BLOCKS = 16


@pytest.fixture(scope="module")
def engine_under_test(
    tmp_path_factory, tiny_model, write_model, load, row_by_row
) -> Iterator[EngineUnderTest]:
    path = write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", tiny_model(seed=3))
    two = {"ds4_expert_device": "cpu", "ds4_expert_budget_mb": 1}
    engine = load(path, cache="q8_0", blocks=BLOCKS, registry=row_by_row(), **two)
    facts = engine.facts["expert_devices"]
    assert facts["near_experts"] > 0 < facts["far_experts"]
    yield EngineUnderTest(
        engine=engine,
        pool_blocks=BLOCKS,
        prompt_ids=range(256),
        longest=140,
        exact=True,
    )
    engine.close()
