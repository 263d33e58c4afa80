"""A linear layer over a weight in quant blocks, which the reference dequantises once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from luce_core.ops.cases import WEIGHT_TYPES, CaseMaker, Inputs, OpCase, row_inputs
from luce_core.ops.spec import SUMMED, ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_core.weights.quant_types import QuantTensor


def without_out_dtype(facts: Mapping[str, Any], device: torch.device) -> Mapping[str, Any]:
    """Kernels see the output's dtype on `out`."""
    return {name: value for name, value in facts.items() if name != "out_dtype"}


def transposed_weight(weight: Any, device: torch.device) -> Tensor:
    """Dequantised once, as [K, N]: a product of few rows is up to twice as fast that way (MKL)."""
    values = weight.dequantize() if isinstance(weight, QuantTensor) else weight
    return values.to(device, torch.float32).t().contiguous()


def quant_matmul(
    x: Tensor,  # [R, K]
    weight: Tensor,  # [K, N] float32: `transposed_weight`
    bias: Tensor | None,  # [N] float32
    out: Tensor,  # [R, N]
    *,
    qtype: str,
    n: int,
    k: int,
) -> None:
    if out.dtype is torch.float32 and bias is None:
        torch.mm(x.float(), weight, out=out)
    elif bias is None:
        out.copy_(x.float() @ weight)
    else:
        out.copy_(torch.addmm(bias, x.float(), weight))


def out_shape(x: Tensor, *, qtype: str, n: int, k: int) -> tuple[int, ...]:
    return (x.shape[0], n)


def cases() -> Iterator[OpCase]:
    for qtype in WEIGHT_TYPES:
        for rows, n, k in ((1, 32, 256), (5, 33, 512), (70, 17, 256)):

            def make(
                maker: CaseMaker,
                qtype: str = qtype,
                shape: tuple[int, int, int] = (rows, n, k),
            ) -> Inputs:
                rows, n, k = shape
                bias = maker.normal32(n) if rows == 5 else None
                weights = (maker.weight(n, k, qtype), bias)
                make_x = maker.columns if rows == 5 else maker.normal
                return row_inputs(make_x(rows, k), weights=weights)

            yield OpCase(f"{qtype} {rows}x{n}x{k}", {"qtype": qtype, "n": n, "k": k}, make)


SPEC = OpSpec(
    name="quant_matmul",
    doc="x @ weight^T + bias, for a weight [N, K] of any quant type.",
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("R", "K"), Rows.ANY),
        ArgSpec("weight", ArgKind.WEIGHT, ("N", "K")),
        ArgSpec("bias", ArgKind.WEIGHT, ("N",), optional=True),
    ),
    out=OutSpec(Rows.ANY, out_shape),
    facts=("qtype", "n", "k"),
    optional_facts={"out_dtype": None},
    constants=without_out_dtype,
    reference=quant_matmul,
    prepare=transposed_weight,
    tolerance=SUMMED,
    cases=cases,
)
