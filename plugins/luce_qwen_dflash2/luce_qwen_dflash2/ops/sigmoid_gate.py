"""The output gate of attention, and of a shared expert."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_qwen_dflash2.ops.smooth import sigmoid


def sigmoid_gate(
    x: Tensor,  # [R, N]
    gate: Tensor,  # [R, N], or [R, 1] for all of a row
    out: Tensor,  # [R, N]
) -> None:
    out.copy_(x.float() * sigmoid(gate))


def out_shape(x: Tensor, gate: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def cases() -> Iterator[OpCase]:
    for rows, n in ((1, 7), (5, 1536), (67, 100)):
        for gates in (n, 1):

            def make(maker: CaseMaker, shape: tuple[int, int, int] = (rows, n, gates)) -> Inputs:
                rows, n, gates = shape
                return row_inputs(maker.columns(rows, n), maker.columns(rows, gates, std=2.0))

            yield OpCase(f"{rows}x{n}, {gates} gates", {}, make)


SPEC = OpSpec(
    name="sigmoid_gate",
    doc="x * sigmoid(gate), with a gate for each value or one for the row.",
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("R", "N"), Rows.ANY),
        ArgSpec("gate", ArgKind.ACTIVATION, ("R", "N or 1"), Rows.ANY),
    ),
    out=OutSpec(Rows.ANY, out_shape),
    reference=sigmoid_gate,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
