"""luce's conformance kit on the native kernels, with equal bits demanded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from luce_kernels_cpu.provider import provider

from luce_core.testing.engine_conformance import *  # noqa: F403
from luce_core.testing.engine_conformance import EngineUnderTest

BLOCKS = 240


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3", "llama avx2"])
def engine_under_test(request, load, tiny) -> Iterator[EngineUnderTest]:
    arch, _, isa = request.param.partition(" ")
    isa = isa or provider().isas[0]
    path = tiny(arch, "Q4_1" if arch == "llama" else "Q4_0")
    cache = "q8_0" if arch == "qwen2" else "f16"
    engine = load(path, cache=cache, drafts=None, isa=isa)
    assert all(bound.split_invariant for bound in engine._ops.bound)
    assert engine._ops.modes == ("replayed by native",)
    yield EngineUnderTest(
        engine=engine,
        pool_blocks=BLOCKS,
        prompt_ids=range(256),
        exact=True,
        with_drafts=lambda source: load(path, cache=cache, drafts=source, isa=isa),
    )
    provider().set_isa(provider().isas[0])
