"""Which compressed entries a row attends to: the lightning indexer of DeepSeek V4.

The score of entry w for row t is sum_h weight[t, h] * max(0, q[t, h] . k[w]). A row sees the
n = (position + 1) // ratio entries that are complete by its position. It picks all of them if there
are no more than `top_k`, else the `top_k` with the largest scores, ties to the lowest number; a
positive factor common to all scores would change nothing and is left out. The picks stand in
ascending order, as float32 (exact up to 2^24), so that who sums over them does so in a fixed order;
behind the last one stand zeros. Where all entries are picked no score is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, Part, Segment
from luce_core.ops.kv_layout import CACHE_TYPES
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_deepseek_v4.ops.case_batches import CASE_LAYOUT, MIXED, filled_entries, some_rows
from luce_deepseek_v4.ops.entry_cache import EntryLayout, read_entries
from luce_deepseek_v4.ops.segment_rows import segment_rows


def index_topk(
    q: Tensor,  # [T, heads, D]
    weights: Tensor,  # [T, heads]
    batch: PackedBatch,
    cache: Tensor,  # [blocks + 1, 128 / ratio, row]
    out: Tensor,  # [T, top_k] float32
    *,
    heads: int,
    head_dim: int,
    ratio: int,
    top_k: int,
    cache_type: str,
) -> None:
    out.zero_()
    for row, segment, _, position in segment_rows(batch):
        count = (position + 1) // ratio
        if count <= top_k:
            out[row, :count] = torch.arange(count, device=out.device)
            continue
        keys = read_entries(cache, batch.block_tables[segment], count, cache_type)
        dots = keys @ q[row].float().t()  # [count, heads]
        scores = (dots.relu() * weights[row].float()).sum(-1)
        chosen = scores.sort(descending=True, stable=True).indices[:top_k]
        out[row] = chosen.sort().values


def out_shape(q: Tensor, *step_args: Any, top_k: int, **constants: Any) -> tuple[int, ...]:
    return (q.shape[0], top_k)


def cases() -> Iterator[OpCase]:
    long = (Segment(500, 12, True), Segment(0, 40, True), Segment(700, 1), Segment(131, 1))
    yield _case("few of many", long, heads=4, dim=64, top_k=8)
    yield _case("all of few", MIXED, heads=4, dim=64, top_k=128)
    yield _case("at the border", MIXED, heads=3, dim=32, top_k=32)
    yield _case("real head", (Segment(2300, 1), Segment(2047, 1)), heads=64, dim=128, top_k=512)
    for cache_type in CACHE_TYPES:
        yield _case(cache_type, long, heads=4, dim=64, top_k=16, cache_type=cache_type)


def _case(
    name: str,
    segments: tuple[Segment, ...],
    *,
    heads: int,
    dim: int,
    top_k: int,
    cache_type: str = "f32",
) -> OpCase:
    layout = EntryLayout(ratio=4, head_dim=dim, cache_type=cache_type)
    facts = {"heads": heads, "head_dim": dim, "ratio": 4, "top_k": top_k, "cache_type": cache_type}

    def make(maker: CaseMaker) -> Inputs:
        """Small integers, whose sums are exact in any order: many scores tie, none nearly."""
        case = maker.batch(segments, CASE_LAYOUT)
        rows = case.batch.rows
        q = maker.columns(rows, heads, dim).round_().clamp_(-2, 2)
        weights = maker.columns(rows, heads).round_().clamp_(-3, 3)
        cache = filled_entries(
            case, layout, maker.device, lambda n: whole_keys(maker, n, dim, cache_type)
        )
        alone, split = [], []
        for number in range(len(segments)):
            batch, where = case.alone(number)
            alone.append(Part((q[where], weights[where], batch, cache), where))
            split += [
                Part((q[here], weights[here], one, cache), here)
                for here, one in some_rows(case, number)
            ]
        args = (q, weights, case.batch, cache)
        return Inputs(args, alone=tuple(alone), split=tuple(split))

    return OpCase(name, facts, make)


def whole_keys(maker: CaseMaker, count: int, dim: int, cache_type: str) -> Tensor:
    """Integers that the cache type holds exactly: a block's scale is 1 with an extreme of 127 in
    q8_0, and of -8 in q4_0."""
    keys = maker.normal32(count, dim, std=2.0).round().clamp(-7, 7)
    keys[:, ::32] = 127.0 if cache_type == "q8_0" else -8.0
    return keys


SPEC = OpSpec(
    name="index_topk",
    doc=(
        "The `top_k` compressed entries with the largest scores sum over heads of weight * "
        "relu(q . key) among those complete by the row's position, ties to the lowest number; all "
        "of them if there are no more. Ascending, exact in float32, zeros behind the last."
    ),
    args=(
        ArgSpec("q", ArgKind.ACTIVATION, ("T", "heads", "D"), Rows.TOKENS),
        ArgSpec("weights", ArgKind.ACTIVATION, ("T", "heads"), Rows.TOKENS),
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("cache", ArgKind.CACHE, ("blocks + 1", "128 / ratio", "row")),
    ),
    out=OutSpec(Rows.TOKENS, out_shape, dtype=torch.float32),
    facts=("heads", "head_dim", "ratio", "top_k", "cache_type"),
    reference=index_topk,
    tolerance=EXACT,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
