"""A recording replays what the model does eagerly, bit for bit, from the batch alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from luce_core.batch.build import BatchBuffers, pack
from luce_core.batch.packed import PackedBatch
from luce_core.device import Device
from luce_core.errors import StepFault
from luce_core.kv.block_pool import BlockPool
from luce_core.kv.slot_table import SlotTable
from luce_core.ops.cases import CaseMaker
from luce_core.ops.core_ops import core_registry
from luce_core.ops.kv_layout import KvCache, KvLayout
from luce_core.ops.record import BufferRef, Recording, ReferenceRecorder, record
from luce_core.ops.registry import OpBinder, OpRegistry
from luce_core.ops.spec import ArgKind
from luce_core.ops.symbols import RecordingRefused
from luce_core.plan import DecodeRow, PrefillSlice, StepPlan

HEADS, KV_HEADS, DIM, WIDTH, VOCAB, BLOCKS = 4, 2, 32, 64, 50, 40


class TinyModel:
    """Three layers with a fused qkv projection, so that column slices are recorded too."""

    def __init__(self, ops: OpBinder, k_type: str = "q8_0") -> None:
        maker = CaseMaker("cpu", torch.float32, seed=9)
        layout = KvLayout(kv_heads=KV_HEADS, head_dim=DIM, block_size=4, k_type=k_type)
        self.caches = [layout.allocate(BLOCKS) for _ in range(3)]
        self.sizes = [HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM]
        table = maker.weight(VOCAB, WIDTH, "Q8_0")
        self.embed, self.head = ops.embedding(table), ops.linear(table)
        self.norm = ops.bind("rms_norm", weights=(maker.normal32(WIDTH),), eps=1e-5)
        self.head_norm = ops.bind("rms_norm", weights=(maker.normal32(DIM),), eps=1e-5)
        self.qkv = ops.linear(maker.weight(sum(self.sizes), WIDTH, "Q4_1"))
        self.out = ops.linear(maker.weight(WIDTH, HEADS * DIM, "Q8_0"), bias=maker.normal32(WIDTH))
        self.gate_up = ops.linear(maker.weight(2 * 96, WIDTH, "Q8_0"))
        self.down = ops.linear(maker.weight(WIDTH, 96, "Q8_0"))
        self.rope = ops.bind("rope", rotary_dim=DIM, interleaved=False, theta=1e4)
        self.write = ops.bind("kv_write", **layout.facts)
        self.attend = ops.bind("paged_attention", heads=HEADS, scale=DIM**-0.5, **layout.facts)
        self.swiglu, self.add = ops.bind("swiglu"), ops.bind("add")
        self.gather, self.greedy = ops.bind("gather_rows"), ops.bind("greedy_token")

    def layer(self, x: Any, batch: Any, cache: KvCache) -> Any:
        q, k, v = self.qkv(self.norm(x)).split(self.sizes, -1)
        q = self.rope(self.head_norm(q.unflatten(-1, (HEADS, DIM))), batch.positions)
        k = self.rope(k.view(-1, KV_HEADS, DIM), batch.positions)
        self.write(k, v.unflatten(-1, (KV_HEADS, DIM)), batch.kv_rows, cache.k, cache.v)
        attended = self.attend(q, batch, cache.k, cache.v)
        x = self.add(x, self.out(attended.flatten(1)))
        both = self.gate_up(self.norm(x))
        return self.add(x, self.down(self.swiglu(both[:, :96], both[..., 96:])))

    def forward(self, batch: Any) -> Any:
        x = self.embed(batch.token_ids)
        for cache in self.caches:
            x = self.layer(x, batch, cache)
        logits = self.head(self.norm(self.gather(x, batch.logit_rows)))
        return logits, self.greedy(logits)


def model() -> TinyModel:
    return TinyModel(core_registry().binder(Device.parse("cpu"), torch.float32))


def recorded(forward: Callable[[Any], Any]) -> Recording:
    return record(forward, max_rows=32, max_logits=8, max_segments=6, max_blocks=10)


class Steps:
    """Plans over real slots: a prompt in two slices, then decode and verify beside a prompt."""

    def __init__(self) -> None:
        self._table = SlotTable(6, BlockPool(BLOCKS, 4))
        for _ in range(3):
            assert self._table.reserve(40) is not None
        self._buffers = BatchBuffers(
            max_rows=32, max_slots=6, max_blocks=10, null_block=BLOCKS, null_slot=6
        )

    def __iter__(self) -> Any:
        plans = (
            StepPlan(0, (PrefillSlice(0, 0, tuple(range(9)), False),)),
            StepPlan(1, (PrefillSlice(0, 9, (3, 4), True), PrefillSlice(1, 0, (5,), True))),
            StepPlan(2, (PrefillSlice(2, 0, (7,) * 20, True),), (DecodeRow(0, 8, 11, 3),)),
            StepPlan(3, (), (DecodeRow(0, 9, 14, 0), DecodeRow(2, 1, 20, 2))),
            StepPlan(4, (), (DecodeRow(1, 2, 1, 0),)),
        )
        for plan in plans:
            yield pack(plan, self._table.live, self._buffers, {0: (1, 2)[: plan.step], 2: (4, 4)})


def test_replay_equals_eager_bit_for_bit_at_every_row_count() -> None:
    eager, replayed = model(), model()
    program = ReferenceRecorder().compile(recorded(replayed.forward))
    for batch in Steps():
        logits, best = eager.forward(batch)
        replayed_logits, replayed_best = program(batch)
        assert logits.shape == (batch.logits, VOCAB)
        assert torch.equal(logits, replayed_logits)
        assert torch.equal(best, replayed_best)
    for one, other in zip(eager.caches, replayed.caches, strict=True):
        assert torch.equal(one.k, other.k)
        assert torch.equal(one.v, other.v)


def test_stale_arena_memory_never_shows() -> None:
    eager, replayed = model(), model()
    program = ReferenceRecorder().compile(recorded(replayed.forward))
    for batch in Steps():
        for place in program._arena:
            place.fill_(0xFF)
        expected, _ = eager.forward(batch)
        assert torch.equal(program(batch)[0], expected)


def test_places_are_reused_and_no_output_shares_one_with_a_live_buffer() -> None:
    recording = recorded(model().forward)
    outputs = sum(call.out is not None for call in recording.calls)
    assert len(recording.arena) < outputs / 3
    last_use: dict[int, int] = {}
    made_at: dict[int, int] = {}
    spans: list[tuple[int, int, int]] = []
    for number, call in enumerate(recording.calls):
        for ref in call.args:
            if isinstance(ref, BufferRef):
                last_use[ref.place] = number
        if call.out is not None:
            place = call.out.place
            if place in made_at:
                spans.append((place, made_at[place], last_use[place]))
                assert last_use[place] < number, f"place {place} is overwritten while call reads it"
            made_at[place] = last_use[place] = number
    assert spans
    assert {ref.place for ref in recording.outputs} == {
        recording.calls[-2].out.place,  # type: ignore[union-attr]
        recording.calls[-1].out.place,  # type: ignore[union-attr]
    }


def test_a_buffer_that_is_still_referenced_keeps_its_place() -> None:
    ops = core_registry().binder(Device.parse("cpu"), torch.float32)
    add, norm = ops.bind("add"), ops.bind("rms_norm", weights=(torch.ones(8),), eps=1e-5)
    embed = ops.embedding(CaseMaker("cpu", torch.float32).weight(VOCAB, 8, "F32"))

    def forward(batch: Any) -> Any:
        first = embed(batch.token_ids)
        view = first.view(-1, 2, 4)
        first = norm(first)
        for _ in range(5):
            first = norm(first)
        return add(first, view.flatten(1))

    recording = recorded(forward)
    embedded = recording.calls[0].out
    assert embedded is not None
    assert all(call.out.place != embedded.place for call in recording.calls[1:])  # type: ignore[union-attr]
    batch = next(iter(Steps()))
    assert torch.equal(ReferenceRecorder().replay(recording, batch), forward(batch))


def test_a_batch_over_the_recorded_sizes_is_a_step_fault() -> None:
    small = record(model().forward, max_rows=4, max_logits=2, max_segments=2, max_blocks=10)
    with pytest.raises(StepFault, match=r"\(9, 0, 1\) .* a recording of \(4, 2, 2\)"):
        ReferenceRecorder().replay(small, next(iter(Steps())))


def refused(forward: Callable[[Any], Any]) -> RecordingRefused:
    with pytest.raises(RecordingRefused) as caught:
        recorded(forward)
    return caught.value


def test_an_op_that_cannot_be_recorded_is_named() -> None:
    registry: OpRegistry = core_registry()

    def add(a: Tensor, b: Tensor, out: Tensor) -> None:
        torch.add(a, b, out=out)

    registry.register_kernel("add", add, device="cpu", dtypes=(), provider="mine", recordable=False)
    error = refused(TinyModel(registry.binder(Device.parse("cpu"), torch.float32)).forward)
    assert error.op == "add"
    assert "kernel of mine cannot be replayed" in error.reason


def with_embedding(use: Callable[[TinyModel, Any, Any], Any]) -> Callable[[Any], Any]:
    tiny = model()
    return lambda batch: use(tiny, tiny.embed(batch.token_ids), batch)


@pytest.mark.parametrize(
    ("use", "named"),
    [
        (lambda m, x, b: x + x, "arithmetic"),
        (lambda m, x, b: torch.nn.functional.silu(x), "torch.silu"),
        (lambda m, x, b: m.norm(x) if b.rows > 1 else x, ".rows"),
        (lambda m, x, b: m.norm(x) if x else x, "a branch"),
        (lambda m, x, b: m.norm(x[:1]), "slicing"),
        (lambda m, x, b: m.norm(x.view(-1, 8)), "view"),
        (lambda m, x, b: m.norm(x.view(-1, 7, 9)), "view"),
        (lambda m, x, b: m.norm(x[b.logit_rows]), "indexing"),
        (lambda m, x, b: m.gather(x, torch.zeros(1, dtype=torch.int32)), "gather_rows"),
        (lambda m, x, b: m.add(x, torch.zeros(32, WIDTH)), "add"),
        (lambda m, x, b: m.add(x), "add"),
        (lambda m, x, b: m.gather(m.gather(x, b.logit_rows), b.logit_rows), "gather_rows"),
        (lambda m, x, b: torch.zeros(3), "the result"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_name(use: Any, named: str) -> None:
    assert named in refused(with_embedding(use)).op


def test_a_recording_holds_what_a_provider_compiles_from() -> None:
    tiny = model()
    recording = recorded(tiny.forward)
    for call in recording.calls:
        assert len(call.args) == len(call.op.spec.step_args)
        assert len(call.op.weights) == len(call.op.spec.weight_args)
        assert (call.out is None) == (call.op.spec.out is None)
    attention = next(c for c in recording.calls if c.op.spec.name == "paged_attention")
    assert attention.op.facts["head_dim"] == DIM
    kinds = [arg.kind for arg in attention.op.spec.step_args]
    assert kinds == [ArgKind.ACTIVATION, ArgKind.BATCH, ArgKind.CACHE, ArgKind.CACHE]
    v_view = next(c for c in recording.calls if c.op.spec.name == "kv_write").args[1]
    assert isinstance(v_view, BufferRef)
    assert v_view.tail == (KV_HEADS, DIM)
    assert v_view.strides == (sum(tiny.sizes), DIM, 1)
    assert v_view.offset == sum(tiny.sizes[:2])


def test_null_segments_of_a_padded_batch_leave_the_real_rows_alone() -> None:
    tiny = model()
    table = SlotTable(6, BlockPool(BLOCKS, 4))
    table.reserve(40)
    buffers = BatchBuffers(max_rows=32, max_slots=6, max_blocks=10, null_block=BLOCKS, null_slot=6)

    def step(null_segments: int) -> tuple[PackedBatch, Tensor]:
        plan = StepPlan(0, (PrefillSlice(0, 0, (1, 2, 3, 4, 5), True),))
        batch = pack(plan, table.live, buffers, null_segments=null_segments)
        return batch, tiny.forward(batch)[0]

    _, alone = step(0)
    batch, padded = step(3)
    assert batch.rows == 8
    assert padded.isfinite().all()
    torch.testing.assert_close(padded[:1], alone, atol=1e-5, rtol=0)


def logits_of_prompt(slices: list[int], *, company: bool) -> Tensor:
    """Slot 0's logits after 20 prompt tokens in slices of these sizes, alone or with slot 1."""
    ops = core_registry().binder(Device.parse("cpu"), torch.float32)
    tiny, table = TinyModel(ops, k_type="f32"), SlotTable(6, BlockPool(BLOCKS, 4))
    for _ in range(2):
        table.reserve(40)
    buffers = BatchBuffers(max_rows=64, max_slots=6, max_blocks=10, null_block=BLOCKS, null_slot=6)
    start, logits = 0, torch.empty(0)
    for size in slices:
        mine = PrefillSlice(0, start, tuple(range(start, start + size)), start + size == 20)
        other = (PrefillSlice(1, start, (9,) * size, False),) if company else ()
        logits = tiny.forward(pack(StepPlan(0, (mine, *other)), table.live, buffers))[0]
        start += size
    return logits


@pytest.mark.parametrize("slices", [[20], [1] * 20, [7, 13], [16, 4]])
@pytest.mark.parametrize("company", [False, True])
def test_company_and_chunking_change_logits_by_rounding_only(
    slices: list[int], company: bool
) -> None:
    whole = logits_of_prompt([20], company=False)
    assert whole.abs().max() > 0.5
    torch.testing.assert_close(logits_of_prompt(slices, company=company), whole, atol=1e-4, rtol=0)
