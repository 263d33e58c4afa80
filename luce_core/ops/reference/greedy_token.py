"""The best token of each row, for samplers that need no more of it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, OutSpec, Rows


def greedy_token(
    logits: Tensor,  # [R, V]
    out: Tensor,  # [R] int32
) -> None:
    best = logits.max(-1)
    out.copy_(torch.where(best.values.isfinite(), best.indices, -1))


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

    def make_faults(maker: CaseMaker) -> Inputs:
        """Rows that offer no token, and some that do in spite of -Inf."""
        logits = maker.normal(5, 300)
        logits[0, 299] = float("nan")
        logits[1, 17] = float("inf")
        logits[2] = float("-inf")
        logits[3, :299] = float("-inf")
        return row_inputs(logits)

    yield OpCase("faults", {}, make_faults)


SPEC = OpSpec(
    name="greedy_token",
    doc=(
        "Index of the largest value of each row; ties go to the lowest index. -1 where that value "
        "is infinite or any is NaN."
    ),
    args=(ArgSpec("logits", ArgKind.ACTIVATION, ("R", "V"), Rows.ANY),),
    out=OutSpec(Rows.ANY, out_shape, torch.int32),
    reference=greedy_token,
    tolerance=EXACT,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
