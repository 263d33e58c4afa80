"""Which experts a row goes to, and how much each counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec, OutSpec, Rows


def moe_route(
    logits: Tensor,  # [R, E]
    out: Tensor,  # [R, 2, top_k] float32: expert numbers, then their weights
    *,
    experts: int,
    top_k: int,
) -> None:
    ranked = logits.float().sort(dim=-1, descending=True, stable=True)
    out[:, 0] = ranked.indices[:, :top_k]
    out[:, 1] = ranked.values[:, :top_k].softmax(-1)


def out_shape(logits: Tensor, *, top_k: int, **facts: Any) -> tuple[int, ...]:
    return (logits.shape[0], 2, top_k)


def cases() -> Iterator[OpCase]:
    for rows, experts, top_k in ((1, 8, 2), (5, 256, 8), (37, 10, 3), (3, 4, 4)):
        facts = {"experts": experts, "top_k": top_k}

        def make(maker: CaseMaker, shape: tuple[int, int] = (rows, experts)) -> Inputs:
            return row_inputs(maker.normal(*shape, std=2.0))

        yield OpCase(f"{rows} rows, {top_k} of {experts}", facts, make)

    def make_ties(maker: CaseMaker) -> Inputs:
        """Rounded, so that many experts tie, at the border too."""
        return row_inputs(maker.normal(16, 32).round())

    yield OpCase("ties", {"experts": 32, "top_k": 6}, make_ties)


SPEC = OpSpec(
    name="moe_route",
    doc=(
        "The `top_k` experts with the largest logits, largest first, ties to the lowest number: "
        "their numbers (exact in float32), then the softmax over their logits, which is the "
        "softmax over all experts, renormalised."
    ),
    args=(ArgSpec("logits", ArgKind.ACTIVATION, ("R", "experts"), Rows.ANY),),
    out=OutSpec(Rows.ANY, out_shape, dtype=torch.float32),
    facts=("experts", "top_k"),
    reference=moe_route,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
