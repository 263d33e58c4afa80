"""Root-mean-square norm over the last dimension: of a row, or of each head of a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec, OutSpec, Rows


def rms_norm(
    x: Tensor,  # [R, D] or [R, H, D]
    weight: Tensor,  # [D] float32
    out: Tensor,  # like x
    *,
    eps: float,
) -> None:
    values = x.float()
    mean_square = values.square().mean(-1, keepdim=True)
    out.copy_(values * torch.rsqrt(mean_square + eps) * weight)


def out_shape(x: Tensor, **constants: Any) -> tuple[int, ...]:
    return tuple(x.shape)


def cases() -> Iterator[OpCase]:
    for shape in ((1, 64), (5, 576), (67, 1000), (3, 9, 64), (2, 3, 128)):

        def make(maker: CaseMaker, shape: tuple[int, ...] = shape) -> Inputs:
            weight = maker.normal32(shape[-1])
            return row_inputs(maker.normal(*shape, std=3.0), weights=(weight,))

        yield OpCase("x".join(map(str, shape)), {"eps": 1e-5}, make)

    def make_columns(maker: CaseMaker) -> Inputs:
        return row_inputs(maker.columns(5, 3, 64), weights=(maker.normal32(64),))

    yield OpCase("columns", {"eps": 1e-6}, make_columns)

    def make_tiny(maker: CaseMaker) -> Inputs:
        """Rows so small that eps decides."""
        return row_inputs(maker.normal(4, 64, std=1e-4), weights=(maker.normal32(64),))

    yield OpCase("tiny", {"eps": 1e-5}, make_tiny)


SPEC = OpSpec(
    name="rms_norm",
    doc="x / sqrt(mean(x^2) + eps) * weight over the last dimension.",
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("R", "...", "D"), Rows.ANY),
        ArgSpec("weight", ArgKind.WEIGHT, ("D",)),
    ),
    out=OutSpec(Rows.ANY, out_shape),
    facts=("eps",),
    reference=rms_norm,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
