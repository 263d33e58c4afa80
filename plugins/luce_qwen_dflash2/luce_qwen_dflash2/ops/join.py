"""Two activations side by side, for what reads several layers' outputs at once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, OutSpec, Rows


def join(
    left: Tensor,  # [R, N]
    right: Tensor,  # [R, M]
    out: Tensor,  # [R, N + M]
) -> None:
    torch.cat((left, right), 1, out=out)


def out_shape(left: Tensor, right: Tensor) -> tuple[int, ...]:
    return (left.shape[0], left.shape[1] + right.shape[1])


def cases() -> Iterator[OpCase]:
    for rows, n, m in ((1, 64, 64), (37, 192, 64), (5, 7, 30)):

        def make(maker: CaseMaker, shape: tuple[int, int, int] = (rows, n, m)) -> Inputs:
            rows, n, m = shape
            return row_inputs(maker.columns(rows, n), maker.normal(rows, m))

        yield OpCase(f"{rows}x{n}+{m}", {}, make)


SPEC = OpSpec(
    name="join",
    doc="The values of `left`, then those of `right`, in each row.",
    args=(
        ArgSpec("left", ArgKind.ACTIVATION, ("R", "N"), Rows.ANY),
        ArgSpec("right", ArgKind.ACTIVATION, ("R", "M"), Rows.ANY),
    ),
    out=OutSpec(Rows.ANY, out_shape),
    reference=join,
    tolerance=EXACT,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
