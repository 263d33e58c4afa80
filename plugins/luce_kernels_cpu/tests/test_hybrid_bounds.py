"""Slots, logs, rings and counts that a step names are checked before a kernel follows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from luce_kernels_cpu import luce_register_kernels
from torch import Tensor

from luce_core.device import Device
from luce_core.errors import StepFault
from luce_core.ops.cases import CaseMaker
from luce_core.ops.registry import OpBinder, OpRegistry

plugin = pytest.importorskip("luce_qwen_dflash2")
blocks = pytest.importorskip("luce_qwen_dflash2.ops.case_blocks")

CPU = torch.device("cpu")
SLOTS, ROWS = 3, 8  # with the null slot; of a log
DELTA = {"key_heads": 1, "value_heads": 2, "key_dim": 16, "value_dim": 16}


@pytest.fixture(scope="module")
def ops() -> OpBinder:
    registry = OpRegistry()
    plugin.luce_register_ops(registry.register_op)
    luce_register_kernels(registry.register_kernel)
    return registry.binder(Device("cpu"), torch.float32)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def run_conv(ops: OpBinder, batch: Any) -> None:
    conv = ops.bind("causal_conv1d", weights=(zeros(16, 4),), channels=16, kernel=4)
    conv(zeros(batch.rows, 16), batch, zeros(SLOTS, 3, 16), zeros(SLOTS, ROWS, 16))


def run_delta(ops: OpBinder, batch: Any) -> None:
    rule = ops.bind("gated_delta", weights=(zeros(2), zeros(2)), eps=1e-6, **DELTA)
    state, logs = zeros(SLOTS, 2, 16, 16), (zeros(SLOTS, ROWS, 1, 16), zeros(SLOTS, ROWS, 2, 16))
    gates = zeros(batch.rows, 2)
    rule(zeros(batch.rows, 64), gates, gates, batch, state, *logs, zeros(SLOTS, ROWS, 2))


def run_attention(ops: OpBinder, batch: Any) -> None:
    facts = {"scale": 1.0, "window": 8, "causal": False}
    attend = ops.bind("draft_attention", heads=2, kv_heads=1, head_dim=16, **facts)
    kv, ring = zeros(batch.rows, 1, 16), zeros(SLOTS, 8, 1, 16)
    attend(zeros(batch.rows, 2, 16), kv, kv, batch, ring, ring)


def run_draw(ops: OpBinder, batch: Any) -> None:
    keys = torch.zeros(SLOTS, 4, dtype=torch.int64)
    ops.bind("draft_draw")(zeros(batch.logits, 20), batch, zeros(SLOTS), keys)


def run_select(ops: OpBinder, batch: Any) -> None:
    maker = CaseMaker("cpu", torch.float32)
    books = tuple(maker.weight(20, 32, "F32") for _ in range(2))
    facts = {"predecessor_type": "F32", "successor_type": "F32"}
    select = ops.bind("candidate_select", weights=books, top_k=4, rank=32, **facts)
    keys = torch.zeros(SLOTS, 4, dtype=torch.int64)
    select(zeros(batch.logits, 20), zeros(batch.logits, 32), batch, zeros(SLOTS), keys)


EVERY = [run_conv, run_delta, run_attention, run_draw, run_select]


@pytest.mark.parametrize("run", EVERY)
@pytest.mark.parametrize("slot", [-1, SLOTS])
def test_a_slot_that_is_not_there_is_named(run: Any, slot: int, ops: OpBinder) -> None:
    run(ops, blocks.block_batch([(5, 3), (0, 2)], CPU, slots=[0, 2]))
    wrong = blocks.block_batch([(5, 3), (0, 2)], CPU, slots=[0, slot])
    with pytest.raises(StepFault, match=rf"slot_ids\[1\] must be in 0..2, got {slot}"):
        run(ops, wrong)


@pytest.mark.parametrize("run", EVERY)
def test_segments_that_do_not_fit_the_rows_are_refused(run: Any, ops: OpBinder) -> None:
    batch = blocks.block_batch([(5, 3), (0, 2)], CPU)
    with pytest.raises(StepFault, match="cu_seqlens must end at 5, got 6"):
        run(ops, replace(batch, cu_seqlens=ints(0, 3, 6)))
    with pytest.raises(StepFault, match="segment 0 has 3 rows, max_query is 2"):
        run(ops, replace(batch, max_query=2))
    with pytest.raises(StepFault, match=r"context_lens\[1\] must not be negative, got -4"):
        run(ops, replace(batch, context_lens=ints(5, -4)))


@pytest.mark.parametrize("run", [run_conv, run_delta])
def test_more_verify_rows_than_the_logs_hold_are_refused(run: Any, ops: OpBinder) -> None:
    run(ops, blocks.block_batch([(5, ROWS)], CPU))
    with pytest.raises(StepFault, match="segment 0 verifies 9 rows, the logs hold 8"):
        run(ops, blocks.block_batch([(5, ROWS + 1)], CPU))


def replay_conv(ops: OpBinder, batch: Any, accepted: Tensor) -> None:
    replay = ops.bind("conv_replay", channels=16, kernel=4)
    replay(batch, accepted, zeros(SLOTS, ROWS, 16), zeros(SLOTS, 3, 16))


def replay_delta(ops: OpBinder, batch: Any, accepted: Tensor) -> None:
    logs = (zeros(SLOTS, ROWS, 1, 16), zeros(SLOTS, ROWS, 2, 16), zeros(SLOTS, ROWS, 2))
    ops.bind("gated_delta_replay", **DELTA)(batch, accepted, *logs, zeros(SLOTS, 2, 16, 16))


@pytest.mark.parametrize("replay", [replay_conv, replay_delta])
@pytest.mark.parametrize("count", [-1, 4, 2**31 - 1])
def test_no_more_rows_become_durable_than_were_verified(
    replay: Any, count: int, ops: OpBinder
) -> None:
    batch = blocks.block_batch([(5, 1), (0, 3)], CPU)
    replay(ops, batch, ints(count, 3, 0))  # slot 0 has one row: its count is nobody's business
    with pytest.raises(StepFault, match=rf"accepted\[1\] must be in 0..3, got {count}"):
        replay(ops, batch, ints(0, count, 0))


@pytest.mark.parametrize("row", [-1, SLOTS * 8])
def test_a_ring_row_that_is_not_there_is_named(row: int, ops: OpBinder) -> None:
    write = ops.bind("ring_write", kv_heads=1, head_dim=16)
    batch, kv = blocks.block_batch([(0, 3)], CPU), zeros(3, 1, 16)
    rings = (zeros(SLOTS, 8, 1, 16), zeros(SLOTS, 8, 1, 16))
    write(kv, kv, batch, ints(0, 23, 8, row), *rings)
    with pytest.raises(StepFault, match=rf"ring_rows\[1\] must be in 0..23, got {row}"):
        write(kv, kv, batch, ints(0, row, 8, 0), *rings)
    with pytest.raises(StepFault, match="rows is 3, but the buffers that the host fills hold 2"):
        write(kv, kv, batch, ints(0, 1), *rings)


def put_rows(ops: OpBinder, batch: Any, places: Tensor) -> None:
    ops.bind("put_rows", column=4)(zeros(3, 8), batch, places, zeros(6, 12))


def take_rows(ops: OpBinder, batch: Any, places: Tensor) -> None:
    ops.bind("take_rows")(batch, places, zeros(6, 12))


@pytest.mark.parametrize("run", [put_rows, take_rows])
@pytest.mark.parametrize("row", [-1, 6])
def test_a_place_that_is_not_there_is_named(run: Any, row: int, ops: OpBinder) -> None:
    batch = blocks.block_batch([(0, 3)], CPU)
    run(ops, batch, ints(5, 0, 2, row))
    with pytest.raises(StepFault, match=rf"places\[1\] must be in 0..5, got {row}"):
        run(ops, batch, ints(5, row, 2))
    with pytest.raises(StepFault, match="rows is 3, but the buffers that the host fills hold 2"):
        run(ops, batch, ints(5, 0))


@pytest.mark.parametrize("column", [-1, 5])
def test_columns_that_are_not_there_are_refused(column: int, ops: OpBinder) -> None:
    put = ops.bind("put_rows", column=column)
    with pytest.raises(StepFault, match=rf"put_rows: 8 columns from {column} on of 6 rows of 12"):
        put(zeros(3, 8), blocks.block_batch([(0, 3)], CPU), ints(5, 0, 2), zeros(6, 12))


@pytest.mark.parametrize("run", [run_draw, run_select])
def test_a_block_with_more_rows_than_noise_keys_is_refused(run: Any, ops: OpBinder) -> None:
    run(ops, blocks.block_batch([(5, 5)], CPU))
    with pytest.raises(StepFault, match=r"segment 0 has 6 rows and 5 logits, .* keys for 4"):
        run(ops, blocks.block_batch([(5, 6)], CPU))
    batch = blocks.block_batch([(5, 2), (5, 2)], CPU)
    with pytest.raises(StepFault, match="cu_logits must end at 2, got 3"):
        run(ops, replace(batch, cu_logits=ints(0, 1, 3)))
    with pytest.raises(StepFault, match="segment 1 has 0 rows and 1 logits"):
        run(ops, replace(batch, cu_seqlens=ints(0, 4, 4), max_query=4))


def test_an_anchor_outside_the_codebooks_is_named(ops: OpBinder) -> None:
    with pytest.raises(StepFault, match=r"token_ids\[3\] must be in 0..19, got 20"):
        run_select(ops, blocks.block_batch([(0, 3), (0, 2)], CPU, token_ids=[1, 2, 3, 20, 5]))
