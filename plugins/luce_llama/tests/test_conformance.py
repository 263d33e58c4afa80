"""luce's conformance kit on small models of each architecture."""

from __future__ import annotations

import pytest

from luce_core.testing.engine_conformance import *  # noqa: F403
from luce_core.testing.engine_conformance import EngineUnderTest
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

BLOCKS = 64


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def engine_under_test(request, tmp_path_factory, load) -> EngineUnderTest:
    model = SyntheticModel(
        arch=request.param, qtype="Q4_0", layers=2, width=64, heads=2, kv_heads=1, ff=128
    )
    path = write_synthetic(tmp_path_factory.mktemp("model") / "tiny.gguf", model)
    return EngineUnderTest(
        engine=load(path, cache="q8_0" if request.param == "qwen2" else "f16", blocks=BLOCKS),
        pool_blocks=BLOCKS,
        prompt_ids=range(256),
        with_drafts=lambda source: load(path, blocks=BLOCKS, drafts=source, max_draft=4),
    )
