"""This step's rows into each slot's ring of recent rows, which serve as both key and value.

The entry of position p lies at p % ring. A ring of window - 1 + r entries lets r rows of one slot
be written before any of them attends: the row before last still finds its whole window.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, Part
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, Rows
from luce_deepseek_v4.ops.case_batches import CASE_LAYOUT, MIXED, one_by_one
from luce_deepseek_v4.ops.segment_rows import segment_rows


def window_write(
    kv: Tensor,  # [T, D]
    batch: PackedBatch,
    ring: Tensor,  # [slots + 1, ring, D]  in place
) -> None:
    for row, _, slot, position in segment_rows(batch):
        ring[slot, position % ring.shape[1]] = kv[row].to(ring.dtype)


def cases() -> Iterator[OpCase]:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for entries, dim in ((16, 64), (143, 512)):
            name = f"{str(dtype).removeprefix('torch.')} {entries}x{dim}"
            yield OpCase(name, {}, _maker(entries, dim, dtype))


def _maker(entries: int, dim: int, dtype: torch.dtype) -> Any:
    def make(maker: CaseMaker) -> Inputs:
        case = maker.batch(MIXED, CASE_LAYOUT)
        shape = (len(MIXED) + 1, entries, dim)
        empty = torch.full(shape, float("nan"), dtype=dtype, device=maker.device)
        kv = maker.columns(case.batch.rows, dim)
        alone, split = [], []
        for number in range(len(MIXED)):
            seen = slice(number, number + 1)
            batch, rows = case.alone(number)
            alone.append(Part((kv[rows], batch, empty.clone()), rows, seen=seen))
            own = empty.clone()
            calls = [(kv[here], one, own) for here, one in one_by_one(case, number)]
            split.append(Part(calls[-1], rows, tuple(calls[:-1]), seen))
        return Inputs(
            (kv, case.batch, empty.clone()),
            observe=lambda args: args[2].clone(),
            alone=tuple(alone),
            split=tuple(split),
        )

    return make


SPEC = OpSpec(
    name="window_write",
    doc="Store each row in its slot's ring, at its position modulo the ring's entries.",
    args=(
        ArgSpec("kv", ArgKind.ACTIVATION, ("T", "D"), Rows.TOKENS),
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("ring", ArgKind.CACHE, ("slots + 1", "ring", "D"), written=True),
    ),
    out=None,
    reference=window_write,
    tolerance=EXACT,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
