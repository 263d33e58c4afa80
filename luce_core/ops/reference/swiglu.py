"""The gated activation of SwiGLU MLPs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec, OutSpec, Rows


def swiglu(
    gate: Tensor,  # [R, N]
    up: Tensor,  # [R, N]
    out: Tensor,  # [R, N]
    *,
    limit: float | None,
) -> None:
    gated, values = gate.float(), up.float()
    if limit is not None:
        gated, values = gated.clamp(max=limit), values.clamp(-limit, limit)
    out.copy_(torch.nn.functional.silu(gated) * values)


def out_shape(gate: Tensor, up: Tensor, **constants: Any) -> tuple[int, ...]:
    return tuple(gate.shape)


def cases() -> Iterator[OpCase]:
    for rows, n in ((1, 7), (5, 1536), (67, 100)):
        for limit in (None, 1.5):

            def make(maker: CaseMaker, shape: tuple[int, int] = (rows, n)) -> Inputs:
                return row_inputs(maker.normal(*shape, std=2.0), maker.normal(*shape, std=2.0))

            yield OpCase(f"{rows}x{n}, limit {limit}", {"limit": limit}, make)

    yield OpCase(
        "columns", {}, lambda maker: row_inputs(maker.columns(5, 96), maker.columns(5, 96))
    )


SPEC = OpSpec(
    name="swiglu",
    doc="silu(gate) * up; with a limit L the gate is cut to <= L and up to -L..L first.",
    args=(
        ArgSpec("gate", ArgKind.ACTIVATION, ("R", "N"), Rows.ANY),
        ArgSpec("up", ArgKind.ACTIVATION, ("R", "N"), Rows.ANY),
    ),
    out=OutSpec(Rows.ANY, out_shape),
    optional_facts={"limit": None},
    reference=swiglu,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
