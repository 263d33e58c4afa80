"""Rows of a step into a buffer that outlives it, at places that the host says.

What a recorded pass leaves for another one goes through `put_rows` and `take_rows`: a pass takes
nothing but the batch and what lies at fixed addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, Rows
from luce_qwen_dflash2.ops.case_blocks import block_batch


def put_rows(
    x: Tensor,  # [T, N]
    batch: PackedBatch,
    places: Tensor,  # [max_rows] int32, of which the first T count
    buffer: Tensor,  # [rows, F]  in place
    *,
    column: int,
) -> None:
    buffer[places[: x.shape[0]], column : column + x.shape[1]] = x.to(buffer.dtype)


def cases() -> Iterator[OpCase]:
    for rows, width, column in ((1, 64, 0), (7, 64, 128), (37, 30, 5)):

        def make(maker: CaseMaker, shape: tuple[int, int] = (rows, width)) -> Inputs:
            rows, width = shape
            buffer = torch.zeros(50, 200, device=maker.device, dtype=maker.dtype)
            places = torch.tensor(maker.shuffled(50), dtype=torch.int32, device=maker.device)
            batch = block_batch([(0, rows)], maker.device)
            x = maker.columns(rows, width)
            return Inputs((x, batch, places, buffer), observe=_buffer)

        yield OpCase(f"{rows} rows of {width} from {column} on", {"column": column}, make)


def _buffer(args: tuple[Any, ...]) -> Tensor:
    out: Tensor = args[3]
    return out


SPEC = OpSpec(
    name="put_rows",
    doc="Store the rows at `places` of a buffer, in the columns from `column` on. No two places "
    "are equal.",
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("T", "N"), Rows.TOKENS),
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("places", ArgKind.CACHE, ("max_rows",)),
        ArgSpec("buffer", ArgKind.CACHE, ("rows", "F"), written=True),
    ),
    out=None,
    facts=("column",),
    reference=put_rows,
    tolerance=EXACT,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
