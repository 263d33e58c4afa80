"""A linear layer of the experts that each row goes to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from luce_core.errors import ConfigError
from luce_core.ops.cases import WEIGHT_TYPES, CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import SUMMED, ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_core.weights.quant_types import QuantTensor

MOST_GROUP_ROWS = 32


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
    group_rows: int,
) -> None:
    inputs = x.float().expand(-1, top_k, -1)
    numbers = route[:, 0].long()
    for expert in sorted(set(numbers.flatten().tolist())):
        pairs = (numbers == expert).nonzero()
        for group in pairs.split(group_rows or 1):
            row, place = group.unbind(1)
            products = weight[expert] * inputs[row, place][:, None]
            out[row, place] = products.sum(-1).to(out.dtype)


def group_constants(facts: Mapping[str, Any], device: torch.device) -> Mapping[str, Any]:
    """The facts; ConfigError for groups that no kernel has."""
    if not 0 <= facts["group_rows"] <= MOST_GROUP_ROWS:
        raise ConfigError(
            f"moe_matmul: groups of {facts['group_rows']} rows; 1 to {MOST_GROUP_ROWS} are "
            "accepted, and 0 for the kernel's own choice"
        )
    return facts


def out_shape(x: Tensor, route: Tensor, *, top_k: int, n: int, **facts: Any) -> tuple[int, ...]:
    return (x.shape[0], top_k, n)


def cases() -> Iterator[OpCase]:
    yield _case("Q8_0", rows=19, inputs=1, n=17, k=256, group_rows=2)
    yield _case("MXFP4", rows=19, inputs=3, n=17, k=256, group_rows=8)
    for qtype in WEIGHT_TYPES:
        yield _case(qtype, rows=5, inputs=1, n=33, k=256)
    for qtype in ("F32", "Q4_K"):
        yield _case(qtype, rows=1, inputs=3, n=32, k=512)
        yield _case(qtype, rows=19, inputs=3, n=17, k=256)


def _case(qtype: str, *, rows: int, inputs: int, n: int, k: int, group_rows: int = 0) -> OpCase:
    experts, top_k = 7, 3
    facts = {"qtype": qtype, "experts": experts, "top_k": top_k, "n": n, "k": k}
    facts["group_rows"] = group_rows

    def make(maker: CaseMaker) -> Inputs:
        flat = maker.weight(experts * n, k, qtype)
        blocks = flat.blocks.view(experts, n, -1)
        weight = QuantTensor(flat.name, flat.qtype, (experts, n, k), blocks)
        chosen = [maker.shuffled(experts)[:top_k] for _ in range(rows)]
        route = torch.zeros(rows, 2, top_k)
        route[:, 0] = torch.tensor(chosen)
        return row_inputs(maker.columns(rows, inputs, k), route.to(maker.device), weights=(weight,))

    grouped = f", groups of {group_rows}" if group_rows else ""
    return OpCase(f"{qtype} {rows}x{inputs}x{n}x{k}{grouped}", facts, make)


SPEC = OpSpec(
    name="moe_matmul",
    doc=(
        "x @ weight[expert]^T for each expert of a row's route, in the route's order. Rows of the "
        "same expert are multiplied together, at most `group_rows` at a time (0: as many as the "
        "kernel likes), which changes no bit."
    ),
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("R", "1 or top_k", "K"), Rows.ANY),
        ArgSpec("route", ArgKind.ACTIVATION, ("R", "2", "top_k"), Rows.ANY),
        ArgSpec("weight", ArgKind.WEIGHT, ("experts", "N", "K")),
    ),
    out=OutSpec(Rows.ANY, out_shape),
    facts=("qtype", "experts", "top_k", "n", "k"),
    optional_facts={"group_rows": 0},
    constants=group_constants,
    reference=moe_matmul,
    tolerance=SUMMED,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
