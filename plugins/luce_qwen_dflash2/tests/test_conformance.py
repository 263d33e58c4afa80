"""luce's conformance kit on small hybrid models: with plain references, where all is exact, and
beside a draft model."""

from __future__ import annotations

import pytest
from luce_qwen_dflash2.synthetic import SyntheticHybrid, write_hybrid

from luce_core.ops.record import ReferenceRecorder
from luce_core.testing.engine_conformance import *  # noqa: F403
from luce_core.testing.engine_conformance import EngineUnderTest

BLOCKS = 64


@pytest.fixture(scope="module", params=["references", "row by row", "experts, replayed", "draft"])
def engine_under_test(
    request, tmp_path_factory, tiny_pair, load, ops_registry, row_by_row
) -> EngineUnderTest:
    if request.param == "draft":
        return _with_a_draft(*tiny_pair, load, row_by_row())
    exact = request.param != "references"
    registry = row_by_row() if exact else ops_registry()
    if request.param == "experts, replayed":
        registry.register_recorder(ReferenceRecorder().compile, provider="test", device="cpu")
        model = SyntheticHybrid(qtype="Q8_0", seed=1, experts=6, top_k=2, ff=64)
    else:
        model = SyntheticHybrid(qtype="Q8_0", seed=1)
    path = write_hybrid(tmp_path_factory.mktemp("model") / "tiny.gguf", model)
    return EngineUnderTest(
        engine=load(path, cache="q8_0", blocks=BLOCKS, registry=registry),
        pool_blocks=BLOCKS,
        prompt_ids=range(256),
        exact=exact,
        with_drafts=lambda source: load(
            path, cache="q8_0", blocks=BLOCKS, drafts=source, max_draft=4, registry=registry
        ),
    )


def _with_a_draft(path, draft, load, registry) -> EngineUnderTest:
    """The draft drafts in every test; in that of speculation, at its full cost what the test says.
    It is told of every row, or it would refuse to propose."""
    return EngineUnderTest(
        engine=load(path, draft=draft, blocks=BLOCKS, registry=registry),
        pool_blocks=BLOCKS,
        prompt_ids=range(256),
        exact=True,
        with_drafts=lambda source: load(
            path, draft=draft, blocks=BLOCKS, drafts=source, registry=registry
        ),
    )
