"""A product of a weight that comes with a scale, and its bias."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec, OutSpec, Rows


def affine(
    x: Tensor,  # [R, N]
    scale: Tensor,  # [1] float32
    bias: Tensor | None,  # [N] float32
    out: Tensor,  # [R, N]
) -> None:
    scaled = x.float() * scale
    out.copy_(scaled if bias is None else scaled + bias)


def out_shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def cases() -> Iterator[OpCase]:
    for rows, n in ((1, 7), (37, 96)):
        for has_bias in (False, True):

            def make(
                maker: CaseMaker, shape: tuple[int, int] = (rows, n), has_bias: bool = has_bias
            ) -> Inputs:
                bias = maker.normal32(shape[1]) if has_bias else None
                return row_inputs(maker.columns(*shape), weights=(maker.normal32(1), bias))

            yield OpCase(f"{rows}x{n}{', bias' if has_bias else ''}", {}, make)


SPEC = OpSpec(
    name="affine",
    doc="x * scale + bias, with one scale for all values.",
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("R", "N"), Rows.ANY),
        ArgSpec("scale", ArgKind.WEIGHT, ("1",)),
        ArgSpec("bias", ArgKind.WEIGHT, ("N",), optional=True),
    ),
    out=OutSpec(Rows.ANY, out_shape),
    reference=affine,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
