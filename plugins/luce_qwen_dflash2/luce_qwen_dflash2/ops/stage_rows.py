"""Rows that the host has put into a fixed place, as the rows of a step.

A recorded pass takes nothing but the batch; what another pass has made enters through this op.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_qwen_dflash2.ops.case_blocks import block_batch


def stage_rows(
    batch: PackedBatch,
    stage: Tensor,  # [max_rows, N]
    out: Tensor,  # [T, N]
) -> None:
    out.copy_(stage[: out.shape[0]])


def out_shape(batch: Any, stage: Tensor) -> tuple[int, ...]:
    return (batch.positions.shape[0], stage.shape[1])


def cases() -> Iterator[OpCase]:
    for rows in (1, 7):

        def make(maker: CaseMaker, rows: int = rows) -> Inputs:
            stage = torch.full((9, 320), float("nan"), device=maker.device, dtype=maker.dtype)
            stage[:rows] = maker.normal(rows, 320)
            return Inputs((block_batch([(0, rows)], maker.device), stage))

        yield OpCase(f"{rows} rows", {}, make)


SPEC = OpSpec(
    name="stage_rows",
    doc="The first T rows of a buffer that the host has filled before the step.",
    args=(
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("stage", ArgKind.CACHE, ("max_rows", "N")),
    ),
    out=OutSpec(Rows.TOKENS, out_shape),
    reference=stage_rows,
    tolerance=EXACT,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
