"""A linear layer of the experts that each row goes to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.ops.cases import WEIGHT_TYPES, CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import SUMMED, ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_core.weights.quant_types import QuantTensor


def moe_matmul(
    x: Tensor,  # [R, 1 or top_k, K]: one input for all of a row's experts, or one for each
    route: Tensor,  # [R, 2, top_k] float32: of `moe_route`
    weight: Tensor,  # [E, N, K] float32
    out: Tensor,  # [R, top_k, N]
    *,
    qtype: str,
    experts: int,
    top_k: int,
    n: int,
    k: int,
) -> None:
    inputs = x.float().expand(-1, top_k, -1)
    for row, numbers in enumerate(route[:, 0].long().tolist()):
        for place, expert in enumerate(numbers):
            out[row, place] = (weight[expert] * inputs[row, place]).sum(-1)


def out_shape(x: Tensor, route: Tensor, *, top_k: int, n: int, **facts: Any) -> tuple[int, ...]:
    return (x.shape[0], top_k, n)


def cases() -> Iterator[OpCase]:
    for qtype in WEIGHT_TYPES:
        yield _case(qtype, rows=5, inputs=1, n=33, k=256)
    for qtype in ("F32", "Q4_K"):
        yield _case(qtype, rows=1, inputs=3, n=32, k=512)
        yield _case(qtype, rows=19, inputs=3, n=17, k=256)


def _case(qtype: str, *, rows: int, inputs: int, n: int, k: int) -> OpCase:
    experts, top_k = 7, 3
    facts = {"qtype": qtype, "experts": experts, "top_k": top_k, "n": n, "k": k}

    def make(maker: CaseMaker) -> Inputs:
        flat = maker.weight(experts * n, k, qtype)
        blocks = flat.blocks.view(experts, n, -1)
        weight = QuantTensor(flat.name, flat.qtype, (experts, n, k), blocks)
        chosen = [maker.shuffled(experts)[:top_k] for _ in range(rows)]
        route = torch.zeros(rows, 2, top_k)
        route[:, 0] = torch.tensor(chosen)
        return row_inputs(maker.columns(rows, inputs, k), route.to(maker.device), weights=(weight,))

    return OpCase(f"{qtype} {rows}x{inputs}x{n}x{k}", facts, make)


SPEC = OpSpec(
    name="moe_matmul",
    doc="x @ weight[expert]^T for each expert of a row's route, in the route's order.",
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("R", "1 or top_k", "K"), Rows.ANY),
        ArgSpec("route", ArgKind.ACTIVATION, ("R", "2", "top_k"), Rows.ANY),
        ArgSpec("weight", ArgKind.WEIGHT, ("experts", "N", "K")),
    ),
    out=OutSpec(Rows.ANY, out_shape),
    facts=("qtype", "experts", "top_k", "n", "k"),
    reference=moe_matmul,
    tolerance=SUMMED,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
