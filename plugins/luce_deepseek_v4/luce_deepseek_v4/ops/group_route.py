"""The route of a layer whose input comes in groups, each with a matrix of its own.

Every row goes to all `groups` experts, group g to expert g: with it `moe_matmul` is the grouped
linear layer of DeepSeek V4's output projection. The weights are 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_deepseek_v4.ops.case_batches import CASE_LAYOUT, MIXED


def group_route(
    batch: PackedBatch,
    out: Tensor,  # [T, 2, groups] float32
    *,
    groups: int,
) -> None:
    out[:, 0] = torch.arange(groups, device=out.device)
    out[:, 1] = 1.0


def out_shape(batch: Any, *, groups: int) -> tuple[int, ...]:
    return (batch.positions.shape[0], 2, groups)


def cases() -> Iterator[OpCase]:
    for groups in (1, 8):

        def make(maker: CaseMaker) -> Inputs:
            return Inputs((maker.batch(MIXED, CASE_LAYOUT).batch,))

        yield OpCase(f"{groups} groups", {"groups": groups}, make)


SPEC = OpSpec(
    name="group_route",
    doc="A route on which every row goes to the experts 0 .. groups - 1, each with weight 1.",
    args=(ArgSpec("batch", ArgKind.BATCH),),
    out=OutSpec(Rows.TOKENS, out_shape, dtype=torch.float32),
    facts=("groups",),
    reference=group_route,
    tolerance=EXACT,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
