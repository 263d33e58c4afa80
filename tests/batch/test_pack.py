"""pack: what a plan becomes on the token axis."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from luce_core.batch.build import BatchBuffers, pack
from luce_core.batch.packed import BATCH_FIELDS
from luce_core.errors import StepFault
from luce_core.kv.block_pool import BlockPool
from luce_core.kv.slot_table import SlotTable
from luce_core.plan import DecodeRow, PrefillSlice, StepPlan

BLOCK_SIZE = 4
TOTAL_BLOCKS = 50


def slots_with(*tokens: int) -> SlotTable:
    table = SlotTable(len(tokens), BlockPool(TOTAL_BLOCKS, BLOCK_SIZE))
    for count in tokens:
        assert table.reserve(count) is not None
    return table


def buffers(rows: int = 64, slots: int = 8) -> BatchBuffers:
    return BatchBuffers(
        max_rows=rows, max_slots=slots, max_blocks=12, null_block=TOTAL_BLOCKS, null_slot=slots
    )


MIXED = StepPlan(
    7,
    (PrefillSlice(1, 4, (10, 11, 12), False), PrefillSlice(3, 0, (20, 21), True)),
    (DecodeRow(0, 30, 9, 0), DecodeRow(2, 40, 6, 2)),
)


def test_prefill_segments_come_first_then_decode_with_drafts_as_verify_rows() -> None:
    table = slots_with(12, 12, 12, 12)
    batch = pack(MIXED, table.live, buffers(), {2: (41, 42)})
    assert batch.token_ids.tolist() == [10, 11, 12, 20, 21, 30, 40, 41, 42]
    assert batch.positions.tolist() == [4, 5, 6, 0, 1, 9, 6, 7, 8]
    assert batch.cu_seqlens.tolist() == [0, 3, 5, 6, 9]
    assert batch.slot_ids.tolist() == [1, 3, 0, 2]
    assert batch.context_lens.tolist() == [4, 0, 9, 6]
    assert (batch.rows, batch.segments, batch.logits) == (9, 4, 5)
    assert (batch.num_prefill, batch.prefill_rows) == (2, 5)
    assert (batch.max_query, batch.max_context) == (3, 10)


def test_logits_are_taken_of_last_slices_decode_rows_and_every_verify_row() -> None:
    batch = pack(MIXED, slots_with(12, 12, 12, 12).live, buffers(), {2: (41, 42)})
    assert batch.logit_rows.tolist() == [4, 5, 6, 7, 8]
    assert batch.cu_logits.tolist() == [0, 0, 1, 2, 5]


def test_logits_are_read_of_the_slots_that_are_named_or_of_all() -> None:
    table, reused = slots_with(12, 12, 12, 12), buffers()
    drafts = {2: (41, 42)}
    named = pack(MIXED, table.live, reused, drafts, logits_of={2, 1})
    assert named.logits_read is not None
    assert named.logits_read.tolist() == [0, 0, 1, 1, 1]  # slot 1 has no logit row yet
    none = pack(MIXED, table.live, reused, drafts, logits_of=())
    assert none.logits_read is not None
    assert none.logits_read.tolist() == [0] * 5
    assert pack(MIXED, table.live, reused, drafts).logits_read is None


def test_kv_rows_are_where_the_block_table_says() -> None:
    table = slots_with(12, 12, 12, 12)
    batch = pack(MIXED, table.live, buffers(), {2: (41, 42)})
    starts = batch.cu_seqlens.tolist()
    for segment, slot_id in enumerate(batch.slot_ids.tolist()):
        for row in range(starts[segment], starts[segment + 1]):
            block, offset = table.live[slot_id].table.locate(int(batch.positions[row]))
            assert int(batch.kv_rows[row]) == block * BLOCK_SIZE + offset


def test_block_tables_are_padded_with_the_null_block() -> None:
    table = slots_with(12, 12, 12, 12)
    batch = pack(MIXED, table.live, buffers())
    blocks = table.live[0].table.blocks
    assert batch.block_tables.shape == (4, 12)
    assert batch.block_tables[2].tolist() == [*blocks[:3], *[TOTAL_BLOCKS] * 9]


def test_every_tensor_is_int32() -> None:
    batch = pack(MIXED, slots_with(12, 12, 12, 12).live, buffers())
    assert {getattr(batch, name).dtype for name in BATCH_FIELDS} == {torch.int32}


def test_buffers_carry_nothing_over_from_an_earlier_step() -> None:
    table, reused = slots_with(12, 12, 12, 12), buffers()
    pack(MIXED, table.live, reused, {2: (41, 42)})
    small = StepPlan(8, (), (DecodeRow(2, 5, 3, 0),))
    again, fresh = pack(small, table.live, reused), pack(small, table.live, buffers())
    for name in BATCH_FIELDS:
        assert torch.equal(getattr(again, name), getattr(fresh, name)), name


def test_null_segments_use_the_null_slot_and_the_null_block() -> None:
    plan = StepPlan(0, (), (DecodeRow(0, 5, 9, 0),))
    batch = pack(plan, slots_with(12).live, buffers(), null_segments=2)
    assert batch.slot_ids.tolist() == [0, 8, 8]
    assert batch.kv_rows.tolist()[1:] == [TOTAL_BLOCKS * BLOCK_SIZE] * 2
    assert (batch.block_tables[1:] == TOTAL_BLOCKS).all()
    assert (batch.rows, batch.segments, batch.logits) == (3, 3, 3)
    only_null = pack(StepPlan(0), {}, buffers(), null_segments=2)
    assert only_null.block_tables.unique().tolist() == [TOTAL_BLOCKS]


def test_a_step_over_the_buffers_or_the_slots_blocks_is_a_step_fault() -> None:
    table = slots_with(12, 12, 12, 12)
    with pytest.raises(StepFault, match=r"8 rows in 4 segments does not fit .* 7 rows"):
        pack(MIXED, table.live, buffers(rows=7), {2: (41,)})
    with pytest.raises(StepFault, match=r"does not fit .* in 3 segments"):
        pack(MIXED, table.live, buffers(slots=3))
    too_far = StepPlan(0, (), (DecodeRow(0, 1, 12, 0),))
    with pytest.raises(StepFault, match="slot 0: 13 tokens need 4 blocks, it holds 3"):
        pack(too_far, table.live, buffers())


@settings(max_examples=60, deadline=None)
@given(
    prefill=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=3),
    decode=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=3),
)
def test_any_plan_keeps_the_invariants(
    prefill: list[tuple[int, int]], decode: list[tuple[int, int]]
) -> None:
    table = slots_with(*[32] * (len(prefill) + len(decode)))
    slices = tuple(
        PrefillSlice(slot, start, tuple(range(count)), count % 2 == 0)
        for slot, (start, count) in enumerate(prefill)
    )
    rows = tuple(
        DecodeRow(len(prefill) + i, 1, position, drafts)
        for i, (position, drafts) in enumerate(decode)
    )
    guesses = {row.slot_id: (2,) * row.max_draft for row in rows}
    plan = StepPlan(0, slices, rows)
    batch = pack(plan, table.live, buffers(), guesses)
    assert batch.rows == plan.rows == int(batch.cu_seqlens[-1])
    assert batch.logits == int(batch.cu_logits[-1])
    assert len(batch.kv_rows.unique()) == batch.rows
    assert bool((batch.kv_rows < TOTAL_BLOCKS * BLOCK_SIZE).all())
    lengths = (batch.cu_seqlens.diff() + batch.context_lens).tolist()
    assert batch.max_context == max(lengths, default=0)
