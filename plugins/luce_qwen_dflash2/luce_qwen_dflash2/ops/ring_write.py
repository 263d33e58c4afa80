"""Keys and values of accepted rows into the draft's rings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, Rows
from luce_qwen_dflash2.ops.case_blocks import block_batch


def ring_write(
    k: Tensor,  # [T, kv_heads, D]
    v: Tensor,  # [T, kv_heads, D]
    batch: PackedBatch,
    ring_rows: Tensor,  # [max_rows] int32, of which the first T count
    k_ring: Tensor,  # [slots + 1, ring, kv_heads, D]  in place
    v_ring: Tensor,  # [slots + 1, ring, kv_heads, D]  in place
    *,
    kv_heads: int,
    head_dim: int,
) -> None:
    rows = ring_rows[: k.shape[0]]
    k_ring.flatten(0, 1)[rows] = k.to(k_ring.dtype)
    v_ring.flatten(0, 1)[rows] = v.to(v_ring.dtype)


def cases() -> Iterator[OpCase]:
    for dtype in (torch.float32, torch.float16):
        for rows in (1, 24):

            def make(maker: CaseMaker, rows: int = rows, dtype: torch.dtype = dtype) -> Inputs:
                return _inputs(maker, rows, dtype)

            name = f"{rows} rows, {str(dtype).removeprefix('torch.')}"
            yield OpCase(name, {"kv_heads": 2, "head_dim": 64}, make)


def _inputs(maker: CaseMaker, rows: int, dtype: torch.dtype) -> Inputs:
    """Three slots of 16 entries; every third row is not accepted and goes to the null slot."""
    null = 3 * 16
    where = torch.tensor([*maker.shuffled(null), 0, 0], dtype=torch.int32)
    where[2:rows:3] = null
    rings = [
        torch.full((4, 16, 2, 64), float("nan"), dtype=dtype, device=maker.device) for _ in range(2)
    ]
    k, v = maker.normal(rows, 2, 64), maker.columns(rows, 2, 64)
    batch = block_batch([(0, rows)], maker.device)

    def real_slots(args: tuple[Any, ...]) -> Tensor:
        return torch.stack((args[4][:3], args[5][:3]))

    return Inputs((k, v, batch, where.to(maker.device), *rings), observe=real_slots)


SPEC = OpSpec(
    name="ring_write",
    doc="Store keys and values at ring_rows, counted over all slots: slot * ring + position % "
    "ring. Rows that are not to be stored name the null slot's. No two others are equal.",
    args=(
        ArgSpec("k", ArgKind.ACTIVATION, ("T", "kv_heads", "D"), Rows.TOKENS),
        ArgSpec("v", ArgKind.ACTIVATION, ("T", "kv_heads", "D"), Rows.TOKENS),
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("ring_rows", ArgKind.CACHE, ("max_rows",)),
        ArgSpec("k_ring", ArgKind.CACHE, ("slots + 1", "ring", "kv_heads", "D"), written=True),
        ArgSpec("v_ring", ArgKind.CACHE, ("slots + 1", "ring", "kv_heads", "D"), written=True),
    ),
    out=None,
    facts=("kv_heads", "head_dim"),
    reference=ring_write,
    tolerance=EXACT,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
