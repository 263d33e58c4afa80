"""The conformance kit on a hybrid model whose steps are graphs, with verify rows, their replay into
recurrent state, and a draft's two passes: null rows disturb nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from luce_kernels_rocm.graphs.program import compile_recording
from luce_kernels_rocm.graphs.remembered import Remembered

from luce_core.device import Device
from luce_core.engine import DraftContext, EngineLimits, LoadContext
from luce_core.ops.core_ops import core_registry
from luce_core.sampling.sampler import Sampler
from luce_core.testing.engine_conformance import *  # noqa: F403
from luce_core.testing.engine_conformance import EngineUnderTest
from luce_core.weights.gguf_file import GgufFile

plugin = pytest.importorskip("luce_qwen_dflash2")
engine_module = pytest.importorskip("luce_qwen_dflash2.engine")
synthetic = pytest.importorskip("luce_qwen_dflash2.synthetic")
shapes = pytest.importorskip("luce_qwen_dflash2.draft.config")
random_drafts = pytest.importorskip("luce_qwen_dflash2.draft.synthetic")
fixed_widths = pytest.importorskip("luce_qwen_dflash2.widths").FixedWidths

BLOCKS = 64
SLOTS = 6


def load(
    path: Path,
    backend: Remembered,
    *,
    draft: Path | None = None,
    drafts: Callable[[Any, int], Sequence[int]] | None = None,
) -> Any:
    registry = core_registry()
    plugin.luce_register_ops(registry.register_op)
    registry.register_recorder(
        lambda recording: compile_recording(recording, backend), provider="graphs", device="cpu"
    )
    device = Device("cpu")
    context = LoadContext(
        gguf=GgufFile.open(path),
        device=device,
        ops=registry.binder(device, torch.float32),
        limits=EngineLimits(
            max_slots=SLOTS, max_context=None, cache_type_k="f32", cache_type_v="f32"
        ),
        sampler=lambda vocab_size: Sampler(SLOTS, vocab_size),
        settings=None,
        progress=lambda done, total, what: None,
        draft=DraftContext(gguf=GgufFile.open(draft, role="draft"), device=device)
        if draft
        else None,
    )
    engine = engine_module.QwenEngine.load(
        context,
        drafts=drafts,
        max_draft=4 if drafts else 0,
        widths=None if draft is None else fixed_widths(8),
    )
    engine.allocate(BLOCKS)
    modes = engine._ops.modes
    assert all(mode.startswith("replayed by graphs: ") for mode in modes)
    # The step, what commits verify rows, and the draft's two passes.
    assert len(modes) == (4 if draft else 2 if drafts else 1)
    return engine


def random_draft(path: Path) -> Path:
    """A DFlash2 draft for the tiny model: it proposes in every step, and nothing of use."""
    config = shapes.DraftConfig(
        layers=2,
        width=64,
        heads=4,
        kv_heads=2,
        head_dim=32,
        context=512,
        eps=1e-6,
        rope={"rotary_dim": 32, "interleaved": False, "theta": 1e7},
        block_size=8,
        mask_token=319,
        target_layers=(0, 2, 3),
        windows=(64, 64),
        causal=(False, False),
        conv=shapes.ConvShape(taps=2, group=16),
        selector=shapes.SelectorShape(rank=32, top_k=16),
    )
    written: Path = random_drafts.write_random_draft(path, config, vocab_size=320, inner=128)
    return written


@pytest.fixture(
    scope="module",
    params=[
        "plain",
        pytest.param("draft", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
def engine_under_test(request, tmp_path_factory) -> Iterator[EngineUnderTest]:
    backend = Remembered()
    folder = tmp_path_factory.mktemp("model")
    path = synthetic.write_hybrid(folder / "tiny.gguf", synthetic.SyntheticHybrid(seed=1))
    draft = random_draft(folder / "draft.gguf") if request.param == "draft" else None

    def with_drafts(source: Any) -> Any:
        return load(path, backend, draft=draft, drafts=source)

    yield EngineUnderTest(
        engine=load(path, backend, draft=draft),
        pool_blocks=BLOCKS,
        prompt_ids=range(256),
        with_drafts=with_drafts,
    )
    assert backend.replayed > 100
