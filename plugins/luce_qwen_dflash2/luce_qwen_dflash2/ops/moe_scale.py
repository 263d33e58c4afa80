"""Expert products of weights that come with a scale for each expert."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec, OutSpec, Rows


def moe_scale(
    x: Tensor,  # [R, top_k, N]
    route: Tensor,  # [R, 2, top_k] float32: of `moe_route`
    scale: Tensor,  # [E] float32
    out: Tensor,  # [R, top_k, N]
) -> None:
    out.copy_(x.float() * scale[route[:, 0].long()][:, :, None])


def out_shape(x: Tensor, route: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def cases() -> Iterator[OpCase]:
    for rows, top_k, n in ((1, 2, 64), (19, 3, 33)):

        def make(maker: CaseMaker, shape: tuple[int, int, int] = (rows, top_k, n)) -> Inputs:
            rows, top_k, _ = shape
            route = torch.zeros(rows, 2, top_k)
            route[:, 0] = maker.integers(0, 7, rows, top_k).cpu()
            x = maker.columns(*shape)
            return row_inputs(x, route.to(maker.device), weights=(maker.normal32(7),))

        yield OpCase(f"{rows}x{top_k}x{n}", {}, make)


SPEC = OpSpec(
    name="moe_scale",
    doc="x * scale[expert] for each expert of a row's route.",
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("R", "top_k", "N"), Rows.ANY),
        ArgSpec("route", ArgKind.ACTIVATION, ("R", "2", "top_k"), Rows.ANY),
        ArgSpec("scale", ArgKind.WEIGHT, ("experts",)),
    ),
    out=OutSpec(Rows.ANY, out_shape),
    reference=moe_scale,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
