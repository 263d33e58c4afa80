"""The conformance kit on a hybrid model replayed by native kernels: equal bits are demanded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from luce_kernels_cpu import luce_register_kernels, luce_register_recorders
from luce_kernels_cpu.provider import provider

from luce_core.device import Device
from luce_core.engine import DraftContext, EngineLimits, LoadContext
from luce_core.ops.core_ops import core_registry
from luce_core.plan import DecodeRow, PrefillSlice, StepPlan
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
REPLAYED = "replayed by luce_kernels_cpu"


def context_of(
    path: Path, *, cache: str = "q8_0", isa: str | None = None, draft: Path | None = None
) -> LoadContext:
    registry = core_registry()
    plugin.luce_register_ops(registry.register_op)
    luce_register_kernels(registry.register_kernel)
    luce_register_recorders(registry.register_recorder)
    device = Device("cpu")
    beside = DraftContext(gguf=GgufFile.open(draft, role="draft"), device=device) if draft else None
    return LoadContext(
        gguf=GgufFile.open(path),
        device=device,
        ops=registry.binder(device, torch.float32, threads=2, isa=isa),
        limits=EngineLimits(
            max_slots=SLOTS, max_context=None, cache_type_k=cache, cache_type_v=cache
        ),
        sampler=lambda vocab_size: Sampler(SLOTS, vocab_size),
        settings=None,
        progress=lambda done, total, what: None,
        draft=beside,
    )


def load(
    path: Path,
    *,
    isa: str | None = None,
    draft: Path | None = None,
    drafts: Callable[[Any, int], Sequence[int]] | None = None,
) -> Any:
    context = context_of(path, isa=isa, draft=draft)
    own = provider()
    own.library.lk_pool_keep_all(own.pool, 1)  # or a busy machine tests one worker
    engine = engine_module.QwenEngine.load(
        context,
        drafts=drafts,
        max_draft=4 if drafts else 0,
        widths=None if draft is None else fixed_widths(8),
    )
    engine.allocate(BLOCKS)
    return engine


def random_draft(path: Path) -> Path:
    """A DFlash2 draft for the tiny models: it proposes in every step, and nothing of use."""
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


@pytest.fixture(scope="module", params=["Q8_0", "Q4_0 avx2", "Q8_0 experts", "Q8_0 draft"])
def engine_under_test(request, tmp_path_factory) -> Iterator[EngineUnderTest]:
    qtype, *more = request.param.split()
    isa = "avx2" if "avx2" in more else provider().isas[0]
    sizes = {"experts": 6, "top_k": 2, "ff": 64} if "experts" in more else {}
    model = synthetic.SyntheticHybrid(qtype=qtype, seed=1, **sizes)
    path = synthetic.write_hybrid(tmp_path_factory.mktemp("model") / "tiny.gguf", model)
    draft = random_draft(path.with_name("draft.gguf")) if "draft" in more else None
    engine = load(path, isa=isa, draft=draft)
    # A draft's blocks are never cut.
    assert all(bound.row_invariant for bound in engine._ops.bound)
    assert draft is not None or all(bound.split_invariant for bound in engine._ops.bound)
    # The step; with drafts also what commits it, and the draft's two passes.
    assert engine._ops.modes == (REPLAYED,) * (1 if draft is None else 4)

    def with_drafts(source: Any) -> Any:
        drafting = load(path, isa=isa, draft=draft, drafts=source)
        assert drafting._ops.modes == (REPLAYED,) * (2 if draft is None else 4)
        return drafting

    yield EngineUnderTest(
        engine=engine,
        pool_blocks=BLOCKS,
        prompt_ids=range(256),
        exact=True,
        with_drafts=with_drafts,
    )
    provider().set_isa(provider().isas[0])


def test_a_profile_leaves_recurrent_state_as_it_was(tmp_path, stepper) -> None:
    path = synthetic.write_hybrid(tmp_path / "tiny.gguf", synthetic.SyntheticHybrid(qtype="Q8_0"))
    steps = stepper(load(path, drafts=lambda request, width: ()))
    model, step, commit = steps.engine._model, steps.engine._run, steps.engine._replay
    steps.run(StepPlan(1, prefill=(PrefillSlice(0, 0, (5, 6, 7), True),), decode=()))
    rows = (DecodeRow(0, 8, 3, 0), DecodeRow(1, 9, 0, 2))
    batch = steps.pack(StepPlan(2, prefill=(), decode=rows), {1: (4, 3)})

    def state() -> list[torch.Tensor]:
        caches = [mixer.cache for mixer in model._recurrent]
        return [kept.clone() for cache in caches for kept in (cache.conv, cache.delta)]

    def changed(before: list[torch.Tensor], slot: int) -> bool:
        return not all(torch.equal(a[slot], b[slot]) for a, b in zip(before, state(), strict=True))

    with torch.inference_mode():
        before = state()
        assert step.compiled.profile(batch)["gated_delta"] > 0
        assert not changed(before, 0)
        step(batch)
        assert changed(before, 0)
        assert not changed(before, 1)
        model.accepted.fill([0, 2])
        before = state()
        assert commit.compiled.profile(batch)["gated_delta_replay"] > 0
        assert not changed(before, 1)
        commit(batch)
        assert changed(before, 1)
        assert not changed(before, 0)


@pytest.mark.parametrize("features", [(1,), (0, 2, 3)])
def test_features_for_a_draft_are_left_by_the_replayed_step(
    features: tuple[int, ...], tmp_path, stepper
) -> None:
    path = synthetic.write_hybrid(tmp_path / "tiny.gguf", synthetic.SyntheticHybrid(qtype="Q8_0"))
    steps = stepper(load(path))
    context = context_of(path)
    model_module = pytest.importorskip("luce_qwen_dflash2.model")
    config = engine_module.read_config(context.gguf.metadata)
    model = model_module.Model(context, config, features=features)
    room = engine_module.Room(blocks=BLOCKS, slots=SLOTS, max_draft=0, device=torch.device("cpu"))
    backlog = pytest.importorskip("luce_qwen_dflash2.draft.backlog").Backlog(
        64,
        len(features) * 64,
        max_rows=64,
        dtype=torch.float32,
        device=room.device,
    )
    backlog.open(23)
    model.allocate(room, backlog)
    program = context.ops.program(
        model.forward, max_rows=64, max_logits=8, max_segments=SLOTS, max_blocks=32
    )
    assert program.mode == REPLAYED
    prompts = (PrefillSlice(0, 0, (5, 6, 7), True), PrefillSlice(1, 0, tuple(range(20)), False))
    batch = steps.pack(StepPlan(1, prefill=prompts, decode=()))
    with torch.inference_mode():
        logits, captured = program.run(batch)[0].clone(), backlog.rows[:23].clone()
        backlog.rows.zero_()
        model.allocate(room, backlog)  # fresh state
        expected = model.forward(batch)
    assert captured.any(1).all()
    assert torch.equal(logits, expected[0])
    assert torch.equal(captured, backlog.rows[:23])
