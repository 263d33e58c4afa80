"""The output norm of a gated DeltaNet layer: each head's values normalised, then gated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_qwen_dflash2.ops.smooth import silu


def gated_rms_norm(
    x: Tensor,  # [R, H, D]
    z: Tensor,  # [R, H, D]
    weight: Tensor,  # [D] float32
    out: Tensor,  # [R, H, D]
    *,
    eps: float,
) -> None:
    values = x.float()
    mean_square = values.square().mean(-1, keepdim=True)
    out.copy_(values * torch.rsqrt(mean_square + eps) * weight * silu(z))


def out_shape(x: Tensor, z: Tensor, **constants: Any) -> tuple[int, ...]:
    return tuple(x.shape)


def cases() -> Iterator[OpCase]:
    for rows, heads, dim in ((1, 1, 16), (5, 6, 24), (67, 3, 128)):

        def make(maker: CaseMaker, shape: tuple[int, int, int] = (rows, heads, dim)) -> Inputs:
            x, z = maker.normal(*shape, std=3.0), maker.columns(*shape)
            return row_inputs(x, z, weights=(maker.normal32(shape[-1]),))

        yield OpCase(f"{rows}x{heads}x{dim}", {"eps": 1e-6}, make)

    def make_tiny(maker: CaseMaker) -> Inputs:
        """Rows so small that eps decides."""
        x, z = maker.normal(4, 2, 64, std=1e-4), maker.normal(4, 2, 64)
        return row_inputs(x, z, weights=(maker.normal32(64),))

    yield OpCase("tiny", {"eps": 1e-6}, make_tiny)


SPEC = OpSpec(
    name="gated_rms_norm",
    doc="x / sqrt(mean(x^2) + eps) * weight * silu(z) over each head.",
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("R", "H", "D"), Rows.ANY),
        ArgSpec("z", ArgKind.ACTIVATION, ("R", "H", "D"), Rows.ANY),
        ArgSpec("weight", ArgKind.WEIGHT, ("D",)),
    ),
    out=OutSpec(Rows.ANY, out_shape),
    facts=("eps",),
    reference=gated_rms_norm,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
