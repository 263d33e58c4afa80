"""luce's conformance kit on the native kernels, with equal bits demanded."""

from __future__ import annotations

import pytest

from luce_core.testing.engine_conformance import *  # noqa: F403
from luce_core.testing.engine_conformance import EngineUnderTest

BLOCKS = 240


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def engine_under_test(request, load, tiny) -> EngineUnderTest:
    path = tiny(request.param, "Q4_1" if request.param == "llama" else "Q4_0")
    cache = "q8_0" if request.param == "qwen2" else "f16"
    engine = load(path, cache=cache, drafts=None)
    assert all(bound.split_invariant for bound in engine._ops.bound)
    assert engine._ops.modes == ("replayed by native",)
    return EngineUnderTest(
        engine=engine,
        pool_blocks=BLOCKS,
        prompt_ids=range(256),
        exact=True,
        with_drafts=lambda source: load(path, cache=cache, drafts=source),
    )
