"""Keys and values of this step's rows into the paged cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, Segment
from luce_core.ops.kv_layout import CACHE_TYPES, KvLayout, decode_rows, encode_rows
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, Rows


def kv_write(
    k: Tensor,  # [T, kv_heads, D]
    v: Tensor,  # [T, kv_heads, D]
    kv_rows: Tensor,  # [T]
    k_cache: Tensor,  # [blocks + 1, block_size, kv_heads, row]  in place
    v_cache: Tensor,  # [blocks + 1, block_size, kv_heads, row]  in place
    *,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    k_type: str,
    v_type: str,
) -> None:
    k_cache.flatten(0, 1)[kv_rows] = encode_rows(k, k_type)
    v_cache.flatten(0, 1)[kv_rows] = encode_rows(v, v_type)


def cases() -> Iterator[OpCase]:
    pairs = [(name, name) for name in CACHE_TYPES] + [("q8_0", "q4_0"), ("f16", "q8_0")]
    for k_type, v_type in pairs:
        for kv_heads, head_dim in ((1, 64), (3, 128)):
            layout = KvLayout(
                kv_heads=kv_heads, head_dim=head_dim, block_size=16, k_type=k_type, v_type=v_type
            )

            def make(maker: CaseMaker, layout: KvLayout = layout) -> Inputs:
                segments = (Segment(0, 33, True), Segment(15, 1), Segment(16, 1), Segment(30, 4))
                case = maker.batch(segments, layout)
                cache = case.poisoned_cache()
                shape = (case.batch.rows, layout.kv_heads, layout.head_dim)
                k, v = maker.normal(*shape), maker.columns(*shape)
                k[0], v[1] = 0.0, 1.0  # a row without a scale, a row of ties
                return Inputs(
                    (k, v, case.batch.kv_rows, cache.k, cache.v),
                    observe=lambda args: torch.stack(
                        (decode_rows(args[3], layout.k_type), decode_rows(args[4], layout.v_type))
                    ),
                )

            yield OpCase(f"{k_type} {v_type} {kv_heads}x{head_dim}", layout.facts, make)


SPEC = OpSpec(
    name="kv_write",
    doc="Store keys and values at the physical rows kv_rows, in the cache's types.",
    args=(
        ArgSpec("k", ArgKind.ACTIVATION, ("T", "kv_heads", "D"), Rows.TOKENS),
        ArgSpec("v", ArgKind.ACTIVATION, ("T", "kv_heads", "D"), Rows.TOKENS),
        ArgSpec("kv_rows", ArgKind.FIELD, ("T",), Rows.TOKENS),
        ArgSpec(
            "k_cache", ArgKind.CACHE, ("blocks", "block_size", "kv_heads", "row"), written=True
        ),
        ArgSpec(
            "v_cache", ArgKind.CACHE, ("blocks", "block_size", "kv_heads", "row"), written=True
        ),
    ),
    out=None,
    facts=("kv_heads", "head_dim", "block_size", "k_type", "v_type"),
    reference=kv_write,
    tolerance=EXACT,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
