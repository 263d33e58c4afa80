"""The rows that go on to the LM head."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, OutSpec, Rows


def gather_rows(
    x: Tensor,  # [T, N]
    rows: Tensor,  # [L]
    out: Tensor,  # [L, N]
) -> None:
    torch.index_select(x, 0, rows, out=out)


def out_shape(x: Tensor, rows: Tensor) -> tuple[int, ...]:
    return (rows.shape[0], *x.shape[1:])


def cases() -> Iterator[OpCase]:
    for rows, taken in ((1, (0,)), (40, (39,)), (40, (0, 7, 8, 39)), (5, ())):

        def make(maker: CaseMaker, rows: int = rows, taken: tuple[int, ...] = taken) -> Inputs:
            picked = torch.tensor(taken, dtype=torch.int32, device=maker.device)
            return Inputs((maker.normal(rows, 96), picked))

        yield OpCase(f"{len(taken)} of {rows}", {}, make)


SPEC = OpSpec(
    name="gather_rows",
    doc="Rows of x [T, N] by number: [L, N].",
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("T", "N"), Rows.TOKENS),
        ArgSpec("rows", ArgKind.FIELD, ("L",), Rows.LOGITS),
    ),
    out=OutSpec(Rows.LOGITS, out_shape),
    reference=gather_rows,
    tolerance=EXACT,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
