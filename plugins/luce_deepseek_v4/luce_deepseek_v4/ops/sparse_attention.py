"""Attention over the window and the compressed entries that `index_topk` picked.

See `attend` for the formula. Of a row's picks the first min(top_k, (position + 1) // ratio) count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, OpCase, Segment
from luce_core.ops.kv_layout import CACHE_TYPES
from luce_core.ops.spec import SUMMED, ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_deepseek_v4.ops.attend import attend, attention_case, out_shape, recent_rows
from luce_deepseek_v4.ops.case_batches import MIXED
from luce_deepseek_v4.ops.entry_cache import read_entries
from luce_deepseek_v4.ops.segment_rows import segment_rows


def sparse_attention(
    q: Tensor,  # [T, heads, D]
    picks: Tensor,  # [T, top_k] float32
    batch: PackedBatch,
    ring: Tensor,  # [slots + 1, ring, D]
    cache: Tensor,  # [blocks + 1, 128 / ratio, row]
    sinks: Tensor,  # [heads] float32
    out: Tensor,  # [T, heads, D]
    *,
    heads: int,
    head_dim: int,
    window: int,
    ratio: int,
    top_k: int,
    cache_type: str,
    scale: float,
) -> None:
    for row, segment, slot, position in segment_rows(batch):
        kv = recent_rows(ring, slot, position, window)
        count = (position + 1) // ratio
        if count:
            entries = read_entries(cache, batch.block_tables[segment], count, cache_type)
            chosen = picks[row, : min(top_k, count)].long()
            kv = torch.cat((kv, entries[chosen]))
        out[row] = attend(q[row].float(), kv, sinks, scale)


def cases() -> Iterator[OpCase]:
    yield _case("all of few", MIXED, heads=4, dim=64, top_k=200)
    yield _case("few of many", MIXED, heads=4, dim=64, top_k=8)
    yield _case("narrow window", MIXED, heads=3, dim=64, top_k=8, window=16, ring=31)
    long = (Segment(1500, 16, True), Segment(0, 40, True), Segment(1023, 1))
    yield _case("long", long, heads=4, dim=64, top_k=64)
    yield _case("real head", (Segment(2300, 1), Segment(700, 1)), heads=64, dim=512, top_k=512)
    for dtype in (torch.float16, torch.bfloat16):
        name = f"{str(dtype).removeprefix('torch.')} ring"
        yield _case(name, MIXED, heads=4, dim=64, top_k=8, ring_dtype=dtype)
    for cache_type in CACHE_TYPES:
        yield _case(cache_type, long, heads=4, dim=64, top_k=24, cache_type=cache_type)


def _case(
    name: str,
    segments: tuple[Segment, ...],
    *,
    heads: int,
    dim: int,
    top_k: int,
    window: int = 128,
    ring: int = 167,
    cache_type: str = "f32",
    ring_dtype: torch.dtype = torch.float32,
) -> OpCase:
    facts: dict[str, Any] = {
        "heads": heads,
        "head_dim": dim,
        "window": window,
        "ratio": 4,
        "top_k": top_k,
        "cache_type": cache_type,
        "scale": dim**-0.5,
    }

    def make_picks(maker: CaseMaker, batch: PackedBatch) -> Tensor:
        """Random entries, ascending; what does not count is NaN."""
        picks = torch.full((batch.rows, top_k), float("nan"))
        for row, position in enumerate(batch.positions.tolist()):
            chosen = sorted(maker.shuffled((position + 1) // 4)[:top_k])
            picks[row, : len(chosen)] = torch.tensor(chosen, dtype=torch.float32)
        return picks.to(maker.device)

    return attention_case(name, segments, facts, make_picks, ring=ring, ring_dtype=ring_dtype)


SPEC = OpSpec(
    name="sparse_attention",
    doc=(
        "Softmax attention with a sink logit per head over the ring's entries of the last `window` "
        "positions and over the row's picks among the compressed entries, of which the first "
        "min(top_k, (position + 1) // ratio) count. One vector is key and value."
    ),
    args=(
        ArgSpec("q", ArgKind.ACTIVATION, ("T", "heads", "D"), Rows.TOKENS),
        ArgSpec("picks", ArgKind.ACTIVATION, ("T", "top_k"), Rows.TOKENS),
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("ring", ArgKind.CACHE, ("slots + 1", "ring", "D")),
        ArgSpec("cache", ArgKind.CACHE, ("blocks + 1", "128 / ratio", "row")),
        ArgSpec("sinks", ArgKind.WEIGHT, ("heads",)),
    ),
    out=OutSpec(Rows.TOKENS, out_shape),
    facts=("heads", "head_dim", "window", "ratio", "top_k", "cache_type", "scale"),
    reference=sparse_attention,
    tolerance=SUMMED,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
