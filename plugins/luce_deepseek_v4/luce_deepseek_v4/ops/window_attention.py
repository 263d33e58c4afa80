"""Attention over the window, and over all compressed entries if the layer has any.

For layers of ratio 0 (`ratio` 0: `cache` is never read) and 128. See `attend` for the formula.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import OpCase, Segment
from luce_core.ops.kv_layout import CACHE_TYPES
from luce_core.ops.spec import SUMMED, ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_deepseek_v4.ops.attend import attend, attention_case, out_shape, recent_rows
from luce_deepseek_v4.ops.case_batches import MIXED
from luce_deepseek_v4.ops.entry_cache import read_entries
from luce_deepseek_v4.ops.segment_rows import segment_rows


def window_attention(
    q: Tensor,  # [T, heads, D]
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
    cache_type: str,
    scale: float,
) -> None:
    for row, segment, slot, position in segment_rows(batch):
        kv = recent_rows(ring, slot, position, window)
        count = (position + 1) // ratio if ratio else 0
        if count:
            entries = read_entries(cache, batch.block_tables[segment], count, cache_type)
            kv = torch.cat((kv, entries))
        out[row] = attend(q[row].float(), kv, sinks, scale)


def cases() -> Iterator[OpCase]:
    yield _case("window only", MIXED, heads=4, dim=64, ratio=0)
    yield _case("window and entries", MIXED, heads=4, dim=64, ratio=128)
    yield _case("narrow window", MIXED, heads=3, dim=64, ratio=128, window=16, ring=31)
    long = (Segment(1500, 16, True), Segment(0, 130, True), Segment(1023, 1))
    yield _case("long", long, heads=4, dim=64, ratio=128, ring=257)
    yield _case("long, window only", long, heads=4, dim=64, ratio=0, ring=257)
    yield _case("real head", (Segment(900, 1), Segment(70, 1)), heads=64, dim=512, ratio=128)
    for dtype in (torch.float16, torch.bfloat16):
        name = f"{str(dtype).removeprefix('torch.')} ring"
        yield _case(name, MIXED, heads=4, dim=64, ratio=128, ring_dtype=dtype)
    for cache_type in CACHE_TYPES:
        yield _case(cache_type, long, heads=4, dim=64, ratio=128, ring=257, cache_type=cache_type)


def _case(
    name: str,
    segments: tuple[Segment, ...],
    *,
    heads: int,
    dim: int,
    ratio: int,
    window: int = 128,
    ring: int = 143,
    cache_type: str = "f32",
    ring_dtype: torch.dtype = torch.float32,
) -> OpCase:
    facts: dict[str, Any] = {
        "heads": heads,
        "head_dim": dim,
        "window": window,
        "ratio": ratio,
        "cache_type": cache_type,
        "scale": dim**-0.5,
    }
    return attention_case(name, segments, facts, None, ring=ring, ring_dtype=ring_dtype)


SPEC = OpSpec(
    name="window_attention",
    doc=(
        "Softmax attention with a sink logit per head over the ring's entries of the last `window` "
        "positions and, with a `ratio`, over all (position + 1) // ratio compressed entries. One "
        "vector is key and value."
    ),
    args=(
        ArgSpec("q", ArgKind.ACTIVATION, ("T", "heads", "D"), Rows.TOKENS),
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("ring", ArgKind.CACHE, ("slots + 1", "ring", "D")),
        ArgSpec("cache", ArgKind.CACHE, ("blocks + 1", "128 / ratio", "row")),
        ArgSpec("sinks", ArgKind.WEIGHT, ("heads",)),
    ),
    out=OutSpec(Rows.TOKENS, out_shape),
    facts=("heads", "head_dim", "window", "ratio", "cache_type", "scale"),
    reference=window_attention,
    tolerance=SUMMED,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
