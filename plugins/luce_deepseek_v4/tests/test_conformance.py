"""luce's conformance kit on a small model: with plain references, and where all is exact."""

from __future__ import annotations

import pytest

from luce_core.ops.record import ReferenceRecorder
from luce_core.testing.engine_conformance import *  # noqa: F403
from luce_core.testing.engine_conformance import EngineUnderTest

BLOCKS = 16


@pytest.fixture(scope="module", params=["references", "row by row, replayed"])
def engine_under_test(
    request, tmp_path_factory, tiny_model, write_model, load, ops_registry, row_by_row
) -> EngineUnderTest:
    exact = request.param != "references"
    registry = row_by_row() if exact else ops_registry()
    if exact:
        registry.register_recorder(ReferenceRecorder().compile, provider="test", device="cpu")
    path = write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", tiny_model(seed=3))
    engine = load(path, cache="q8_0", blocks=BLOCKS, registry=registry)
    return EngineUnderTest(
        engine=engine,
        pool_blocks=BLOCKS,
        prompt_ids=range(256),
        longest=140,
        exact=exact,
    )
