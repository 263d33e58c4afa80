"""What the parity cases of paged_attention do not reach: sinks, shared keys and values, odd heads,
more parts than one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from luce_kernels_rocm.configs import ATTENTION_PART
from luce_kernels_rocm.ops.paged_attention import paged_attention
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Segment
from luce_core.ops.kv_layout import KvLayout

MIXED = (Segment(0, 3, True), Segment(17, 1), Segment(30, 5))


def run(
    segments: tuple[Segment, ...],
    *,
    heads: int,
    sinks: Tensor | None = None,
    shared: bool = False,
    dtype: torch.dtype = torch.float32,
    max_context: int | None = None,
    **layout_facts: Any,
) -> tuple[Tensor, Tensor]:
    """What the kernels give, and what a softmax in float64 over each row's keys gives."""
    layout = KvLayout(**{"block_size": 16, "k_type": "f32", "v_type": "f32", **layout_facts})
    maker = CaseMaker("cpu", dtype, seed=3)
    case = maker.batch(segments, layout, null_segments=1)
    values = case.keys if shared else case.values
    cache = case.filled_cache()
    q = maker.normal(case.batch.rows, heads, layout.head_dim)
    out = torch.full_like(q, float("nan"))
    scale = layout.head_dim**-0.5
    batch = case.batch
    if max_context is not None:
        batch = replace(batch, max_context=max_context)
    v_cache = cache.k if shared else cache.v
    facts = {**layout.facts, "heads": heads, "scale": scale, "sinks": sinks}
    paged_attention(q, batch, cache.k, v_cache, out, **facts)

    wanted = torch.empty(out.shape, dtype=torch.float64)
    group = heads // layout.kv_heads
    for number, segment in enumerate(segments):
        rows = case.rows_of(number)
        for row in range(segment.rows):
            seen = segment.context + row + 1
            keys = case.keys[number][:seen].double().repeat_interleave(group, 1)
            vals = values[number][:seen].double().repeat_interleave(group, 1)
            scores = torch.einsum("hd,chd->hc", q[rows.start + row].double() * scale, keys)
            if sinks is not None:
                scores = torch.cat((scores, sinks.double()[:, None]), 1)
            weights = scores.softmax(1)[:, :seen]
            wanted[rows.start + row] = torch.einsum("hc,chd->hd", weights, vals)
    last = case.rows_of(len(segments) - 1).stop
    return out[:last], wanted[:last]


def test_sinks_take_their_share_of_the_softmax() -> None:
    sinks = torch.tensor([0.5, -2.0, 3.0, 1.0])
    got, wanted = run(MIXED, heads=4, kv_heads=2, head_dim=64, sinks=sinks)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)
    without, _ = run(MIXED, heads=4, kv_heads=2, head_dim=64)
    assert (got - without).abs().max() > 0.1


def test_one_cache_can_hold_keys_that_are_values_too() -> None:
    got, wanted = run(MIXED, heads=3, kv_heads=1, head_dim=512, shared=True)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head_dim", [80, 96])
def test_head_sizes_need_not_be_powers_of_two(head_dim: int) -> None:
    got, wanted = run(MIXED, heads=4, kv_heads=2, head_dim=head_dim)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)


def test_parts_are_merged_whether_or_not_all_hold_keys() -> None:
    """Rows on both sides of a border between parts, in one step."""
    border = (Segment(ATTENTION_PART - 2, 4), Segment(5, 1), Segment(2 * ATTENTION_PART, 1))
    got, wanted = run(border, heads=2, kv_heads=1, head_dim=64)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)


def test_a_grid_for_longer_contexts_changes_no_bit() -> None:
    """As a captured graph has it, which is made for the longest context."""
    usual, _ = run(MIXED[1:], heads=2, kv_heads=1, head_dim=64)
    long, _ = run(MIXED[1:], heads=2, kv_heads=1, head_dim=64, max_context=4 * ATTENTION_PART)
    assert torch.equal(usual, long)
