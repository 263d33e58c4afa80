"""The experts' outputs, weighted and summed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec, OutSpec, Rows


def moe_sum(
    x: Tensor,  # [R, top_k, N]
    route: Tensor,  # [R, 2, top_k] float32: of `moe_route`
    out: Tensor,  # [R, N]
) -> None:
    parts = x.float() * route[:, 1, :, None]
    total = parts[:, 0]
    for place in range(1, parts.shape[1]):
        total = total + parts[:, place]
    out.copy_(total)


def out_shape(x: Tensor, route: Tensor, **facts: Any) -> tuple[int, ...]:
    return (x.shape[0], x.shape[2])


def cases() -> Iterator[OpCase]:
    for rows, top_k, n in ((1, 2, 64), (5, 8, 200), (37, 3, 33), (4, 1, 16)):

        def make(maker: CaseMaker, shape: tuple[int, int, int] = (rows, top_k, n)) -> Inputs:
            rows, top_k, _ = shape
            route = torch.zeros(rows, 2, top_k)
            route[:, 1] = maker.normal32(rows, top_k).softmax(-1)
            return row_inputs(maker.columns(*shape), route.to(maker.device))

        yield OpCase(f"{rows}x{top_k}x{n}", {}, make)


SPEC = OpSpec(
    name="moe_sum",
    doc="The sum of a row's expert outputs times their weights, in the route's order.",
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("R", "top_k", "N"), Rows.ANY),
        ArgSpec("route", ArgKind.ACTIVATION, ("R", "2", "top_k"), Rows.ANY),
    ),
    out=OutSpec(Rows.ANY, out_shape),
    reference=moe_sum,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
