"""Paged attention against a dense float64 softmax, written without blocks, batches or heads."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from luce_core.device import Device
from luce_core.ops.bound import BoundOp
from luce_core.ops.cases import CaseMaker, PagedCase, Segment
from luce_core.ops.core_ops import core_registry
from luce_core.ops.kv_layout import CACHE_TYPES, KvLayout, decode_rows, encode_rows

STEP = (
    Segment(0, 40, True),
    Segment(33, 20, True),
    Segment(0, 1),
    Segment(15, 1),
    Segment(16, 1),
    Segment(90, 5),
)


def dense(q: Tensor, case: PagedCase, scale: float) -> Tensor:
    """[T, heads, D] float64, one row and one head at a time."""
    layout, out = case.layout, torch.zeros(q.shape, dtype=torch.float64)
    group = q.shape[1] // layout.kv_heads
    for number, segment in enumerate(case.segments):
        k = decode_rows(encode_rows(case.keys[number], layout.k_type), layout.k_type).double()
        v = decode_rows(encode_rows(case.values[number], layout.v_type), layout.v_type).double()
        for i in range(segment.rows):
            row, seen = case.rows_of(number).start + i, segment.context + i + 1
            for head in range(q.shape[1]):
                scores = k[:seen, head // group] @ q[row, head].double() * scale
                out[row, head] = scores.softmax(0) @ v[:seen, head // group]
    return out


def attend(layout: KvLayout, heads: int) -> BoundOp:
    ops = core_registry().binder(Device.parse("cpu"), torch.float32)
    scale = layout.head_dim**-0.5
    return ops.bind("paged_attention", heads=heads, scale=scale, **layout.facts)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (9, 3), (8, 1)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_ragged_step_equals_dense_softmax(heads: int, kv_heads: int, head_dim: int) -> None:
    layout = KvLayout(
        kv_heads=kv_heads, head_dim=head_dim, block_size=16, k_type="f32", v_type="f32"
    )
    maker = CaseMaker("cpu", torch.float32)
    case = maker.batch(STEP, layout)
    cache, q = case.filled_cache(), maker.normal(case.batch.rows, heads, head_dim)
    got = attend(layout, heads)(q, case.batch, cache.k, cache.v)
    expected = dense(q, case, 1 / math.sqrt(head_dim))
    torch.testing.assert_close(got.double(), expected, atol=5e-6, rtol=0)


@pytest.mark.parametrize("k_type", CACHE_TYPES)
@pytest.mark.parametrize("v_type", CACHE_TYPES)
def test_k_and_v_types_are_chosen_apart(k_type: str, v_type: str) -> None:
    layout = KvLayout(kv_heads=2, head_dim=64, block_size=8, k_type=k_type, v_type=v_type)
    maker = CaseMaker("cpu", torch.float32)
    case = maker.batch((Segment(5, 6, True), Segment(20, 1)), layout)
    cache, q = case.filled_cache(), maker.normal(case.batch.rows, 4, 64)
    got = attend(layout, 4)(q, case.batch, cache.k, cache.v)
    torch.testing.assert_close(got.double(), dense(q, case, 0.125), atol=5e-6, rtol=0)


def test_where_the_blocks_lie_does_not_matter() -> None:
    layout = KvLayout(kv_heads=2, head_dim=64, block_size=4)
    results = []
    shuffled = CaseMaker("cpu", torch.float32, seed=6).shuffled(70)
    for blocks in (shuffled, list(range(200)), list(reversed(range(70)))):
        maker = CaseMaker("cpu", torch.float32)
        case = maker.batch(STEP, layout, blocks=blocks)
        cache, q = case.filled_cache(), maker.normal(case.batch.rows, 4, 64)
        results.append(attend(layout, 4)(q, case.batch, cache.k, cache.v))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_rows_written_by_kv_write_are_what_attention_reads() -> None:
    layout = KvLayout(kv_heads=2, head_dim=64, block_size=4, k_type="q8_0", v_type="f16")
    maker = CaseMaker("cpu", torch.float32)
    case = maker.batch((Segment(0, 9, True), Segment(0, 3)), layout)
    ops = core_registry().binder(Device.parse("cpu"), torch.float32)
    cache, q = case.poisoned_cache(), maker.normal(case.batch.rows, 2, 64)
    k, v = torch.cat(case.keys), torch.cat(case.values)
    ops.bind("kv_write", **layout.facts)(k, v, case.batch.kv_rows, cache.k, cache.v)
    got = attend(layout, 2)(q, case.batch, cache.k, cache.v)
    torch.testing.assert_close(got.double(), dense(q, case, 0.125), atol=5e-6, rtol=0)


def test_chunking_and_verify_rows_change_a_row_by_rounding_only() -> None:
    layout = KvLayout(kv_heads=3, head_dim=64, block_size=16, k_type="f32", v_type="f32")
    maker = CaseMaker("cpu", torch.float32)
    case = maker.batch((Segment(0, 700, True),), layout)
    cache, q = case.filled_cache(), maker.normal(700, 9, 64)
    op = attend(layout, 9)
    whole = op(q, case.batch, cache.k, cache.v)
    for row in (0, 1, 15, 16, 511, 512, 699):
        single = op(q[row : row + 1], case.one_row(0, row), cache.k, cache.v)
        torch.testing.assert_close(single[0], whole[row], atol=2e-6, rtol=0)
