"""Steps as graphs, with a backend that captures by remembering the call: which graph a step gets,
what it is filled up with, and that nothing changes but the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from luce_kernels_rocm import luce_register_recorders
from luce_kernels_rocm.graphs.backend import DeviceGraphs
from luce_kernels_rocm.graphs.program import GraphProgram, compile_recording
from luce_kernels_rocm.graphs.remembered import Remembered
from luce_kernels_rocm.graphs.shape import GraphShape, Limits, null_lengths, shape_of
from luce_llama.engine import LlamaEngine

from luce_core.batch.build import BatchBuffers, pack
from luce_core.batch.packed import BATCH_FIELDS, PackedBatch
from luce_core.device import Device
from luce_core.engine import EngineLimits, LoadContext
from luce_core.kv.block_pool import BlockPool
from luce_core.kv.slot_table import SlotTable
from luce_core.ops.core_ops import core_registry
from luce_core.ops.host_op import host_op
from luce_core.ops.record import BufferRef, Call, Recording
from luce_core.ops.registry import OpRegistry
from luce_core.ops.spec import ArgKind, ArgSpec, OutSpec, Rows
from luce_core.ops.symbols import RecordingRefused
from luce_core.plan import DecodeRow, PrefillSlice, StepPlan
from luce_core.sampling.sampler import Sampler
from luce_core.testing.driver import Driver, run_alone
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

BLOCKS = 16
SLOTS = 5
CPU = Device("cpu")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    small = SyntheticModel(
        arch="qwen3", vocab=288, width=64, heads=4, kv_heads=2, head_dim=32, ff=96, qtype="Q4_0"
    )
    return write_synthetic(tmp_path / "small.gguf", small)


def replaying(backend: Remembered) -> OpRegistry:
    registry = core_registry()
    registry.register_recorder(
        lambda recording: compile_recording(recording, backend), provider="graphs", device="cpu"
    )
    return registry


def load(
    path: Path, registry: OpRegistry, *, slots: int = SLOTS, max_draft: int = 0
) -> LlamaEngine:
    context = LoadContext(
        gguf=GgufFile.open(path),
        device=CPU,
        ops=registry.binder(CPU, torch.float32),
        limits=EngineLimits(
            max_slots=slots, max_context=None, cache_type_k="f32", cache_type_v="f32"
        ),
        sampler=lambda vocab_size: Sampler(slots, vocab_size),
        settings=None,
        progress=lambda done, total, what: None,
    )
    drafts = (lambda request, width: [3] * width) if max_draft else None
    engine = LlamaEngine.load(context, drafts=drafts, max_draft=max_draft)
    engine.allocate(BLOCKS)
    return engine


class Steps:
    """Batches of real slots, one after the other, in engines' own order."""

    def __init__(self, null_slot: int = SLOTS) -> None:
        self._table = SlotTable(SLOTS, BlockPool(BLOCKS, 16))
        for _ in range(SLOTS):
            assert self._table.reserve(40) is not None
        self._buffers = BatchBuffers(
            max_rows=64, max_slots=8, max_blocks=16, null_block=BLOCKS, null_slot=null_slot
        )

    def prompts(self) -> PackedBatch:
        slices = tuple(PrefillSlice(n, 0, (7 + n, 5, 3), True) for n in range(SLOTS))
        return pack(StepPlan(0, slices), self._table.live, self._buffers)

    def decode(
        self, *slots: int, drafts: int = 0, position: int = 3, null_segments: int = 0
    ) -> PackedBatch:
        rows = tuple(DecodeRow(n, 11 + n, position, drafts) for n in slots)
        guesses = dict.fromkeys(slots, (2,) * drafts)
        plan = StepPlan(0, (), rows)
        more = {"null_segments": null_segments}
        return pack(plan, self._table.live, self._buffers, guesses, **more)


def engines(model: Path, backend: Remembered, **options: Any) -> tuple[LlamaEngine, LlamaEngine]:
    return load(model, core_registry(), **options), load(model, replaying(backend), **options)


def caches(engine: LlamaEngine) -> list[torch.Tensor]:
    return [side[:-1] for cache in engine._model._caches for side in (cache.k, cache.v)]


def test_plain_steps_fill_up_to_a_power_of_two_rows() -> None:
    limits = Limits(rows=64, logits=12, segments=64)
    steps = Steps()
    assert shape_of(steps.decode(0), limits) == GraphShape(1, 1, 1, 1, 512)
    assert shape_of(steps.decode(0, 1, 4), limits) == GraphShape(4, 4, 4, 1, 512)
    assert shape_of(steps.decode(0, 1, 2, 3, 4), limits) == GraphShape(8, 8, 8, 1, 512)
    # Never more rows than there are logits.
    verify = steps.decode(0, 1, 2, drafts=2)
    assert shape_of(verify, limits) == GraphShape(12, 4, 12, 4, 512)
    assert shape_of(replace(verify, max_context=513), limits) == GraphShape(12, 4, 12, 4, 1024)


def test_no_null_segment_is_longer_than_the_longest_of_its_step() -> None:
    assert null_lengths(7, 3) == (3, 3, 1)
    assert null_lengths(6, 3) == (3, 3)
    assert null_lengths(2, 1) == (1, 1)
    assert null_lengths(0, 4) == ()


def test_steps_of_prompts_and_odd_logits_have_no_graph() -> None:
    limits = Limits(rows=64, logits=64, segments=64)
    steps = Steps()
    assert shape_of(steps.prompts(), limits) is None
    batch = steps.decode(0, 1, drafts=2)
    assert shape_of(replace(batch, logits=1), limits) is None
    assert shape_of(replace(batch, rows=65, logits=65), limits) is None


def test_a_draft_s_steps_are_captured_as_they_are() -> None:
    batch = replace(Steps().decode(0, 1, 2, drafts=4), logits=12)
    shape = shape_of(batch, Limits(rows=64, logits=64, segments=64))
    assert shape == GraphShape(15, 3, 12, 8, 512)


def test_filled_steps_give_what_unfilled_ones_do(model: Path) -> None:
    """Every count of rows, verify rows too; outputs, and every block of the caches but the null
    one."""
    backend = Remembered()
    eager, replayed = engines(model, backend, max_draft=3)
    ours, theirs = Steps(), Steps()
    calls = [("prompts", (), {})]
    calls += [("decode", tuple(range(n)), {}) for n in range(1, SLOTS + 1)]
    calls += [
        ("decode", (1, 3), {"drafts": 2}),
        ("decode", (0, 2, 4), {"drafts": 3, "position": 4}),
    ]
    calls += [("decode", (4,), {"position": 5})]
    with torch.inference_mode():
        for name, args, options in calls:
            wanted = eager._run(getattr(theirs, name)(*args, **options))
            got = replayed._run(getattr(ours, name)(*args, **options))
            for one, other in zip(got, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert backend.replayed == len(calls) - 1
    for one, other in zip(caches(replayed), caches(eager), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def filled(program: GraphProgram, batch: PackedBatch) -> PackedBatch:
    """What a graph reads once a step is copied in; nothing lay there before."""
    for field in program._inputs._fields.values():
        field.fill_(-7)
    shape = shape_of(batch, program._limits)
    assert shape is not None
    program._inputs.fill(batch, shape)
    return program._inputs.batch(shape)


def test_plain_steps_are_filled_as_packing_with_null_segments_would(model: Path) -> None:
    program = load(model, replaying(Remembered()), slots=8)._run.compiled
    for count in range(1, SLOTS + 1):
        got = filled(program, Steps(null_slot=8).decode(*range(count)))
        null = got.rows - count
        wanted = Steps(null_slot=8).decode(*range(count), null_segments=null)
        assert (got.rows, got.segments, got.logits) == (wanted.rows,) * 3
        for name in BATCH_FIELDS:
            assert torch.equal(getattr(got, name), getattr(wanted, name)), name


def test_verify_steps_are_filled_with_whole_null_segments(model: Path) -> None:
    program = load(model, replaying(Remembered()), max_draft=3)._run.compiled
    batch = Steps().decode(0, 2, 4, drafts=2)
    got = filled(program, batch)
    assert (got.rows, got.segments) == (16, 6)
    assert got.cu_seqlens.tolist() == [0, 3, 6, 9, 12, 15, 16]
    assert got.cu_logits.tolist() == got.cu_seqlens.tolist()
    assert got.logit_rows.tolist() == list(range(16))
    assert got.positions.tolist() == [3, 4, 5] * 3 + [0, 1, 2] * 2 + [0]
    assert got.slot_ids.tolist() == [0, 2, 4, SLOTS, SLOTS, SLOTS]
    assert got.context_lens.tolist() == [3, 3, 3, 0, 0, 0]
    assert (got.block_tables[3:] == BLOCKS).all()
    assert (got.kv_rows[9:] == 16 * BLOCKS).all()
    # A pass without logits, as the one that commits verify rows.
    got = filled(program, replace(batch, logits=0, cu_logits=torch.zeros_like(batch.cu_logits)))
    assert got.cu_logits.tolist() == [0] * 7


def test_a_graph_is_captured_once_and_its_memory_stays(model: Path) -> None:
    backend = Remembered()
    engine = load(model, replaying(backend))
    assert backend.captured == 4  # 1, 2, 4 and 5 rows
    steps = Steps()
    program = engine._run.compiled
    places = {name: field.data_ptr() for name, field in program._inputs._fields.items()}
    with torch.inference_mode():
        engine._run(steps.prompts())
        for _ in range(2):
            for slots in ((0,), (0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3, 4)):
                engine._run(steps.decode(*slots))
    assert (backend.captured, backend.replayed) == (4, 8)
    assert places == {name: field.data_ptr() for name, field in program._inputs._fields.items()}


def test_start_screen_and_props_say_what_is_captured(model: Path) -> None:
    engine = load(model, replaying(Remembered()))
    assert engine._ops.modes == (
        "replayed by graphs: a graph for each shape of decode step (rows 1, 2, 4, 5), "
        "op by op with prompt rows",
    )


def test_a_device_that_does_not_capture_leaves_steps_eager_and_says_why(model: Path) -> None:
    engine = load(model, replaying(Remembered(lambda number: number == 2)))
    (mode,) = engine._ops.modes
    assert mode.startswith("op by op: graphs: cannot record the step: its graph of 2 rows")
    assert mode.endswith("not permitted when stream is capturing")
    with torch.inference_mode():
        logits, _ = engine._run(Steps().prompts())
    assert logits.shape[0] == SLOTS


def test_a_shape_that_fails_while_serving_runs_op_by_op(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Remembered(lambda number: number > 4)
    engine = load(model, replaying(backend), slots=2, max_draft=2)
    assert isinstance(engine._run.compiled, GraphProgram)
    wanted = load(model, core_registry(), slots=2, max_draft=2)
    before = backend.captured
    ours, theirs = Steps(), Steps()
    with torch.inference_mode():
        for _ in range(2):
            got, _ = engine._run(ours.decode(0, 1, drafts=2, position=0))
            expected, _ = wanted._run(theirs.decode(0, 1, drafts=2, position=0))
            assert torch.equal(got, expected)
    assert backend.captured == before + 1  # tried once
    assert backend.replayed == 0
    assert "run op by op" in caplog.text


def test_a_reference_refuses_by_name_before_a_device_is_touched(model: Path) -> None:
    registry = core_registry()
    registry.register_recorder(
        lambda recording: compile_recording(recording, DeviceGraphs(torch.device("cuda"))),
        provider="graphs",
        device="cpu",
    )
    (mode,) = load(model, registry)._ops.modes
    assert mode.startswith("op by op: graphs: cannot record embedding_rows: the reference waits")


def test_what_the_host_does_in_the_middle_of_a_step_is_refused_by_name() -> None:
    op = host_op(
        "routed_experts",
        lambda x, out: out.copy_(x),
        args=(ArgSpec("x", ArgKind.ACTIVATION, ("T", "N"), Rows.TOKENS),),
        out=OutSpec(Rows.TOKENS, lambda x: tuple(x.shape)),
        device=torch.device("cuda"),
        dtype=torch.float32,
    )
    here = BufferRef(0, Rows.TOKENS, torch.float32, (4,), (4, 1), 0)
    recording = Recording((Call(op, (here,), here),), (64,), (here,), False, 4, 4, 4, 4)
    with pytest.raises(RecordingRefused, match="cannot record routed_experts: the host does it"):
        DeviceGraphs(torch.device("cuda")).check(recording)


def test_whole_requests_are_the_same_in_company(model: Path) -> None:
    prompt = (5, 17, 30, 42, 8)
    wanted = run_alone(load(model, core_registry()), prompt, max_tokens=8, pool_blocks=BLOCKS)
    backend = Remembered()
    driver = Driver(load(model, replaying(backend)), pool_blocks=BLOCKS)
    first = driver.submit(prompt, max_tokens=8)
    for tail in range(2):
        driver.submit(prompt[: 2 + tail], max_tokens=6)
    driver.run()
    assert driver.output(first).tokens == wanted.tokens
    assert backend.replayed >= 6


def test_both_gpu_kinds_have_the_recorder() -> None:
    found: list[tuple[str, str]] = []
    luce_register_recorders(lambda compile, *, provider, device: found.append((provider, device)))
    assert found == [("luce_kernels_rocm", "hip"), ("luce_kernels_rocm", "cuda")]
