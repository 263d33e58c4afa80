"""Causal attention of ragged rows over the paged cache.

Each segment is attended on its own, over exactly the keys it may see: its bits do not depend on
who else is in the step, and nothing outside its own blocks is ever read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, Part, Segment
from luce_core.ops.kv_layout import CACHE_TYPES, KvLayout, decode_rows
from luce_core.ops.spec import SUMMED, ArgKind, ArgSpec, OpSpec, OutSpec, Rows

# Rows attended at once: bounds the mask's size on long prompts.
_CHUNK_ROWS = 512


def paged_attention(
    q: Tensor,  # [T, heads, D]
    batch: PackedBatch,
    k_cache: Tensor,  # [blocks + 1, block_size, kv_heads, row]
    v_cache: Tensor,  # [blocks + 1, block_size, kv_heads, row]
    out: Tensor,  # [T, heads, D]
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    k_type: str,
    v_type: str,
    scale: float,
) -> None:
    starts = batch.cu_seqlens.tolist()
    contexts = batch.context_lens.tolist()
    group = heads // kv_heads
    for segment, context in enumerate(contexts):
        first, stop = starts[segment], starts[segment + 1]
        keys = context + stop - first
        blocks = batch.block_tables[segment, : -(-keys // block_size)]
        k = _read(k_cache, blocks, k_type)[:keys]  # [C, kv_heads, D]
        v = _read(v_cache, blocks, v_type)[:keys]
        if stop - first == 1:
            rows = q[first].float().view(kv_heads, group, head_dim)
            out[first] = _one_row(rows, k, v, scale).view(heads, head_dim)
            continue
        for low in range(first, stop, _CHUNK_ROWS):
            high = min(low + _CHUNK_ROWS, stop)
            last = context + high - first
            out[low:high] = _many_rows(
                q[low:high].float(), batch.positions[low:high], k[:last], v[:last], scale
            )


def _read(cache: Tensor, blocks: Tensor, cache_type: str) -> Tensor:
    return decode_rows(cache.index_select(0, blocks), cache_type).flatten(0, 1)


def _one_row(
    q: Tensor,  # [kv_heads, group, D]
    k: Tensor,  # [C, kv_heads, D]
    v: Tensor,  # [C, kv_heads, D]
    scale: float,
) -> Tensor:  # [kv_heads, group, D]
    scores = torch.bmm(q * scale, k.permute(1, 2, 0))
    return torch.bmm(scores.softmax(-1), v.transpose(0, 1))


def _many_rows(
    q: Tensor,  # [R, heads, D]
    positions: Tensor,  # [R]
    k: Tensor,  # [C, kv_heads, D]
    v: Tensor,  # [C, kv_heads, D]
    scale: float,
) -> Tensor:  # [R, heads, D]
    visible = torch.arange(k.shape[0], device=q.device) <= positions[:, None]
    attended = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=visible,
        scale=scale,
        enable_gqa=True,
    )
    return attended[0].transpose(0, 1)


def out_shape(q: Tensor, *step_args: Any, **constants: Any) -> tuple[int, ...]:
    return tuple(q.shape)


def cases() -> Iterator[OpCase]:
    mixed = (
        Segment(0, 5, True),
        Segment(16, 20, True),
        Segment(0, 1, True),
        Segment(0, 1),
        Segment(15, 1),
        Segment(16, 1),
        Segment(70, 1),
        Segment(29, 4),
        Segment(31, 2),
    )
    f32 = {"k_type": "f32", "v_type": "f32"}
    yield _case("mixed step", mixed, heads=9, kv_heads=3, head_dim=64, **f32)
    yield _case("one row", (Segment(40, 1),), heads=4, kv_heads=4, head_dim=64, **f32)
    yield _case("one prompt", (Segment(0, 48, True),), heads=8, kv_heads=1, head_dim=128, **f32)
    yield _case("second slice", (Segment(37, 50, True),), heads=2, kv_heads=2, head_dim=256, **f32)
    yield _case("verify only", (Segment(9, 8), Segment(24, 8)), heads=6, kv_heads=2, head_dim=64)
    yield _case("long prompt", (Segment(3, 600, True),), heads=2, kv_heads=1, head_dim=64)
    yield _case("small blocks", mixed, heads=4, kv_heads=2, head_dim=64, block_size=4)
    for cache_type in CACHE_TYPES:
        types = {"k_type": cache_type, "v_type": cache_type}
        yield _case(f"cache {cache_type}", mixed, heads=4, kv_heads=2, head_dim=64, **types)
    mixed_types = {"k_type": "q8_0", "v_type": "q4_0"}
    yield _case("cache q8_0 q4_0", mixed, heads=4, kv_heads=1, head_dim=128, **mixed_types)


def _case(name: str, segments: tuple[Segment, ...], *, heads: int, **layout_facts: Any) -> OpCase:
    layout = KvLayout(**{"block_size": 16, **layout_facts})
    facts = {**layout.facts, "heads": heads, "scale": layout.head_dim**-0.5}

    def make(maker: CaseMaker) -> Inputs:
        case = maker.batch(segments, layout)
        cache = case.filled_cache()
        q = maker.columns(case.batch.rows, heads, layout.head_dim)
        alone, split = [], []
        for number, segment in enumerate(segments):
            batch, rows = case.alone(number)
            alone.append(Part((q[rows], batch, cache.k, cache.v), rows))
            for row in dict.fromkeys((0, segment.rows // 2, segment.rows - 1)):
                here = slice(rows.start + row, rows.start + row + 1)
                split.append(Part((q[here], case.one_row(number, row), cache.k, cache.v), here))
        args = (q, case.batch, cache.k, cache.v)
        return Inputs(args, alone=tuple(alone), split=tuple(split))

    return OpCase(name, facts, make)


SPEC = OpSpec(
    name="paged_attention",
    doc="Softmax attention of a row over its slot's keys at positions <= its own, by head group.",
    args=(
        ArgSpec("q", ArgKind.ACTIVATION, ("T", "heads", "D"), Rows.TOKENS),
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("k_cache", ArgKind.CACHE, ("blocks", "block_size", "kv_heads", "row")),
        ArgSpec("v_cache", ArgKind.CACHE, ("blocks", "block_size", "kv_heads", "row")),
    ),
    out=OutSpec(Rows.TOKENS, out_shape),
    facts=("heads", "kv_heads", "head_dim", "block_size", "k_type", "v_type", "scale"),
    reference=paged_attention,
    tolerance=SUMMED,
    row_invariant=True,
    cases=cases,
)
