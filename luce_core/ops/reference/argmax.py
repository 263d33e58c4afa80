"""The best token of each row."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, OutSpec, Rows


def argmax(
    logits: Tensor,  # [R, V]
    out: Tensor,  # [R] int32
) -> None:
    out.copy_(logits.argmax(-1))


def out_shape(logits: Tensor) -> tuple[int, ...]:
    return (logits.shape[0],)


def cases() -> Iterator[OpCase]:
    for rows, vocab in ((1, 5), (6, 49152), (3, 1000)):

        def make(maker: CaseMaker, shape: tuple[int, int] = (rows, vocab)) -> Inputs:
            logits = maker.normal(*shape)
            logits[-1] = 0.0
            logits[-1, 2:4] = 9.0
            return row_inputs(logits)

        yield OpCase(f"{rows}x{vocab}", {}, make)


SPEC = OpSpec(
    name="argmax",
    doc="Index of the largest value of each row; ties go to the lowest index.",
    args=(ArgSpec("logits", ArgKind.ACTIVATION, ("R", "V"), Rows.ANY),),
    out=OutSpec(Rows.ANY, out_shape, torch.int32),
    reference=argmax,
    tolerance=EXACT,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
