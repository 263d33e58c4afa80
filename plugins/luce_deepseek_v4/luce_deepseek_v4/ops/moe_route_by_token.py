"""The route of a row whose experts its token id names: the hash-routed layers of DeepSeek V4.

The router's scores do not choose here, they only weigh: as in `moe_route` with `sqrt_softplus`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, Part, Segment
from luce_core.ops.reference.moe_route import expert_scores, expert_weights
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_deepseek_v4.ops.case_batches import CASE_LAYOUT

_SCORING = "sqrt_softplus"


def moe_route_by_token(
    logits: Tensor,  # [T, E]
    batch: PackedBatch,
    table: Tensor,  # [vocab, top_k] float32: expert numbers by token id
    out: Tensor,  # [T, 2, top_k] float32: expert numbers, then their weights
    *,
    experts: int,
    top_k: int,
    scale: float,
) -> None:
    chosen = table[batch.token_ids.long()]
    scores = expert_scores(logits, _SCORING).gather(-1, chosen.long())
    out[:, 0] = chosen
    out[:, 1] = expert_weights(scores, _SCORING) * scale


def out_shape(logits: Tensor, *step_args: Any, top_k: int, **facts: Any) -> tuple[int, ...]:
    return (logits.shape[0], 2, top_k)


def cases() -> Iterator[OpCase]:
    segments = (Segment(0, 7, True), Segment(9, 1), Segment(30, 1))
    for experts, top_k in ((8, 2), (256, 6)):
        facts = {"experts": experts, "top_k": top_k, "scale": 1.5}

        def make(maker: CaseMaker, sizes: tuple[int, int] = (experts, top_k)) -> Inputs:
            experts, top_k = sizes
            case = maker.batch(segments, CASE_LAYOUT)
            ids = maker.integers(0, 50, case.batch.rows)
            logits = maker.columns(case.batch.rows, experts)
            table = torch.tensor([maker.shuffled(experts)[:top_k] for _ in range(50)])
            parts = []
            for number in range(len(segments)):
                batch, rows = case.alone(number)
                parts.append(Part((logits[rows], replace(batch, token_ids=ids[rows])), rows))
            batch = replace(case.batch, token_ids=ids)
            made = tuple(parts)
            return Inputs((logits, batch), (table.float(),), alone=made, split=made)

        yield OpCase(f"{top_k} of {experts}", facts, make)


SPEC = OpSpec(
    name="moe_route_by_token",
    doc=(
        "The experts that a table names for the row's token id, in its order, then their weights: "
        "s / sum of the chosen s, times `scale`, with s = sqrt(softplus(logit))."
    ),
    args=(
        ArgSpec("logits", ArgKind.ACTIVATION, ("T", "experts"), Rows.TOKENS),
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("table", ArgKind.WEIGHT, ("vocab", "top_k")),
    ),
    out=OutSpec(Rows.TOKENS, out_shape, dtype=torch.float32),
    facts=("experts", "top_k", "scale"),
    reference=moe_route_by_token,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
