"""Rows of a buffer as the rows of a step: what `put_rows` has kept of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_qwen_dflash2.ops.case_blocks import block_batch


def take_rows(
    batch: PackedBatch,
    places: Tensor,  # [max_rows] int32, of which the first T count
    buffer: Tensor,  # [rows, F]
    out: Tensor,  # [T, F]
) -> None:
    out.copy_(buffer[places[: out.shape[0]]])


def out_shape(batch: Any, places: Tensor, buffer: Tensor) -> tuple[int, ...]:
    return (batch.positions.shape[0], buffer.shape[1])


def cases() -> Iterator[OpCase]:
    for rows in (1, 7):

        def make(maker: CaseMaker, rows: int = rows) -> Inputs:
            buffer = torch.full((20, 320), float("nan"), device=maker.device, dtype=maker.dtype)
            places = torch.tensor(maker.shuffled(20)[:9], dtype=torch.int32, device=maker.device)
            buffer[places[:rows]] = maker.normal(rows, 320)
            return Inputs((block_batch([(0, rows)], maker.device), places, buffer))

        yield OpCase(f"{rows} rows", {}, make)


SPEC = OpSpec(
    name="take_rows",
    doc="The rows at `places` of a buffer.",
    args=(
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("places", ArgKind.CACHE, ("max_rows",)),
        ArgSpec("buffer", ArgKind.CACHE, ("rows", "F")),
    ),
    out=OutSpec(Rows.TOKENS, out_shape),
    reference=take_rows,
    tolerance=EXACT,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
