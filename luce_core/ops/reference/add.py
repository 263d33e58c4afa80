"""The sum of two activations, for residual streams."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import ROUNDED, ArgKind, ArgSpec, OpSpec, OutSpec, Rows


def add(
    a: Tensor,  # [R, N]
    b: Tensor,  # [R, N]
    out: Tensor,  # [R, N]
) -> None:
    torch.add(a, b, out=out)


def out_shape(a: Tensor, b: Tensor) -> tuple[int, ...]:
    return tuple(a.shape)


def cases() -> Iterator[OpCase]:
    for rows, n in ((1, 7), (5, 576), (67, 100)):

        def make(maker: CaseMaker, shape: tuple[int, int] = (rows, n)) -> Inputs:
            return row_inputs(maker.normal(*shape), maker.normal(*shape))

        yield OpCase(f"{rows}x{n}", {}, make)


SPEC = OpSpec(
    name="add",
    doc="a + b.",
    args=(
        ArgSpec("a", ArgKind.ACTIVATION, ("R", "N"), Rows.ANY),
        ArgSpec("b", ArgKind.ACTIVATION, ("R", "N"), Rows.ANY),
    ),
    out=OutSpec(Rows.ANY, out_shape),
    reference=add,
    tolerance=ROUNDED,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
