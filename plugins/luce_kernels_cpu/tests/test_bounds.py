"""What a batch says is checked where it enters the library: an error names the field, and nothing
outside the buffers is touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from luce_kernels_cpu import structs
from luce_kernels_cpu.provider import provider
from luce_kernels_cpu.structs import Domain, Op
from luce_kernels_cpu.views import cache_view, tensor_rows

from luce_core.errors import StepFault
from luce_core.ops.kv_layout import KvLayout
from luce_core.plan import DecodeRow, PrefillSlice, StepPlan

PLAN = StepPlan(
    1,
    prefill=(PrefillSlice(0, 0, tuple(range(20)), True),),
    decode=(DecodeRow(1, 3, 0, 0), DecodeRow(2, 4, 40, 0)),
)
BIG = 2**31 - 1


def changed(values: torch.Tensor, index: Any, value: int) -> torch.Tensor:
    copy = values.clone()
    copy[index] = value
    return copy


@pytest.fixture(scope="module")
def steps(load, tiny, stepper):
    return stepper(load(tiny()))


@pytest.mark.parametrize(
    ("field", "index", "value", "message"),
    [
        ("token_ids", 3, 320, r"token_ids\[3\] must be in 0..319, got 320"),
        ("token_ids", 0, -1, r"token_ids\[0\] must be in 0..319, got -1"),
        ("positions", 5, -7, r"positions\[5\] must be in .* got -7"),
        ("positions", 21, 41, r"positions\[21\] = 41, but its segment has 41 keys"),
        ("positions", 4, 20, r"positions\[4\] = 20, but its segment has 20 keys"),
        ("positions", 4, 9, r"positions\[5\] = 5 is less than the 9 before it"),
        ("cu_seqlens", 0, 1, r"cu_seqlens\[0\] must be 0, got 1"),
        ("cu_seqlens", 1, 30, r"cu_seqlens\[2\] = 21 is less than the 30 before it"),
        ("cu_seqlens", 3, 23, "cu_seqlens must end at 22, got 23"),
        ("cu_seqlens", 2, 22, "num_prefill 1 and prefill_rows 20|segment"),
        ("context_lens", 1, -1, r"context_lens\[1\] must not be negative, got -1"),
        ("context_lens", 2, BIG, r"segment 2 has 1 rows and 2147483648 keys"),
        ("block_tables", (2, 1), 241, r"block_tables\[2\]\[1\] must be in 0..240, got 241"),
        ("block_tables", (0, 0), -1, r"block_tables\[0\]\[0\] must be in 0..240, got -1"),
        ("kv_rows", 7, 241 * 16, r"kv_rows\[7\] must be in 0..3855, got 3856"),
        ("kv_rows", 7, -16, r"kv_rows\[7\] must be in 0..3855, got -16"),
        ("logit_rows", 2, 22, r"logit_rows\[2\] must be in 0..21, got 22"),
    ],
)
def test_a_wrong_value_is_named(steps, field, index, value, message) -> None:
    expected = steps.run(PLAN)
    batch = steps.pack(PLAN)
    wrong = replace(batch, **{field: changed(getattr(batch, field), index, value)})
    with pytest.raises(StepFault, match=message):
        steps.engine._run(wrong)
    assert torch.equal(steps.run(PLAN), expected)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rows", -1, "rows must not be negative"),
        ("rows", BIG, "rows is 2147483647, but the tape's buffers hold"),
        ("segments", 7, "segments is 7, but the tape's buffers hold 6"),
        ("logits", 55, "logits is 55, but the tape's buffers hold 54"),
        ("num_prefill", 4, "num_prefill 4"),
        ("prefill_rows", 19, "prefill_rows 19"),
        ("max_query", 19, "segment 0 has 20 rows and 20 keys, max_query is 19"),
        ("max_context", 40, "segment 2 has 1 rows and 41 keys, .* max_context 40"),
    ],
)
def test_a_wrong_count_is_named(steps, field, value, message) -> None:
    batch = steps.pack(PLAN)
    with pytest.raises(StepFault, match=message):
        steps.engine._run(replace(batch, **{field: value}))


def test_a_table_too_narrow_for_its_keys_is_refused(steps) -> None:
    batch = steps.pack(PLAN)
    narrow = batch.block_tables[:, :2].contiguous()
    with pytest.raises(StepFault, match=r"block_tables\[2\] has 2 entries, 41 keys need 3"):
        steps.engine._run(replace(batch, block_tables=narrow))


def test_what_lies_past_a_segments_keys_is_not_looked_at(steps) -> None:
    """The padding of a table means nothing, so it may hold anything."""
    expected = steps.run(PLAN)
    batch = steps.pack(PLAN)
    padded = changed(batch.block_tables, (0, 5), 10_000)
    assert torch.equal(steps.engine._run(replace(batch, block_tables=padded))[0], expected)


@pytest.mark.parametrize(("heads", "dim"), [(2, 32), (1, 64), (4, 16)])
def test_turned_keys_must_fit_the_cache(heads: int, dim: int) -> None:
    layout = KvLayout(kv_heads=1, head_dim=32, block_size=16, k_type="f16", v_type="f16")
    cache, x, frequencies = layout.allocate(4), torch.zeros(1, 64), torch.ones(8)
    x = x[:, : heads * dim]
    rows = tensor_rows(x, Domain.TOKENS)
    rope = structs.RopeArgs(rows, frequencies.data_ptr(), heads, dim, 8, 0, 1.0, rows)
    caches = (cache_view(c, "f16", layout.facts) for c in (cache.k, cache.v))
    args = structs.RopeWriteArgs(rope, rope, None, None, 0.0, 0.0, rows, *caches)
    with pytest.raises(StepFault, match=rf"rope_write: k of {heads} heads of {dim} does not fit"):
        provider().run(Op.ROPE_WRITE, args, structs.Batch())


def test_ops_run_one_by_one_are_checked_too(load, tiny, stepper) -> None:
    eager = stepper(load(tiny(), recorded=False))
    batch = eager.pack(PLAN)
    with pytest.raises(StepFault, match=r"token_ids\[0\] must be in 0..319"):
        eager.engine._run(replace(batch, token_ids=changed(batch.token_ids, 0, 9999)))
    with pytest.raises(StepFault, match=r"kv_rows\[1\] must be in"):
        eager.engine._run(replace(batch, kv_rows=changed(batch.kv_rows, 1, 99_999)))
    with pytest.raises(StepFault, match=r"block_tables\[0\]\[0\] must be in"):
        eager.engine._run(replace(batch, block_tables=changed(batch.block_tables, (0, 0), 500)))
