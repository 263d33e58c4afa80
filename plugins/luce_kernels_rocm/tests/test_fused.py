"""Fused launches give, bit for bit, what the kernels of their parts give one after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from luce_kernels_rocm.ops.add import add
from luce_kernels_rocm.ops.fused import add_rms_norm, swiglu_matmul
from luce_kernels_rocm.ops.quant_matmul import narrow_matmul, quant_matmul
from luce_kernels_rocm.ops.rms_norm import rms_norm
from luce_kernels_rocm.ops.swiglu import swiglu
from luce_kernels_rocm.weights import blocks_on
from torch import Tensor

from luce_core.ops.cases import CaseMaker
from luce_core.weights.quant_types import QuantTensor

CPU = torch.device("cpu")
N, K = 37, 64
EPS = 1e-5
DTYPES = (torch.float32, torch.float16)


@pytest.fixture(params=DTYPES)
def maker(request: pytest.FixtureRequest) -> CaseMaker:
    return CaseMaker(CPU, request.param, seed=11)


def nan(maker: CaseMaker, *shape: int) -> Tensor:
    return torch.full(shape, float("nan"), dtype=maker.dtype)


def normed(maker: CaseMaker, x: Tensor, weight: Tensor) -> Tensor:
    out = nan(maker, *x.shape)
    rms_norm(x, weight, out, eps=EPS)
    return out


def multiplied(
    maker: CaseMaker, x: Tensor, weight: QuantTensor, bias: Tensor | None = None
) -> Tensor:
    out = nan(maker, x.shape[0], N)
    quant_matmul(x, blocks_on(weight, CPU), bias, out, **facts(weight))
    return out


def added(maker: CaseMaker, a: Tensor, b: Tensor) -> Tensor:
    out = nan(maker, *a.shape)
    add(a, b, out)
    return out


def facts(weight: QuantTensor) -> dict[str, Any]:
    return {"qtype": weight.qtype.name, "n": N, "k": K}


def test_a_sum_and_its_norm(maker: CaseMaker) -> None:
    a, b, weight = maker.columns(5, 100), maker.columns(5, 100), maker.normal32(100)
    total, out = nan(maker, 5, 100), nan(maker, 5, 100)
    add_rms_norm(a, b, weight, total, out, eps=EPS)
    assert torch.equal(total, added(maker, a, b))
    assert torch.equal(out, normed(maker, total, weight))


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_a_residual_behind_a_product(maker: CaseMaker, rows: int) -> None:
    x, weight, bias = maker.columns(rows, K), maker.weight(N, K, "Q8_0"), maker.normal32(N)
    residual, out = maker.columns(rows, N), nan(maker, rows, N)
    quant_matmul(x, blocks_on(weight, CPU), bias, out, **facts(weight), residual=residual)
    assert torch.equal(out, added(maker, multiplied(maker, x, weight, bias), residual))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_norm_before_a_product_and_a_residual_behind(maker: CaseMaker, rows: int) -> None:
    x, factors = maker.columns(rows, K, std=3.0), maker.normal32(K)
    weight, residual, out = maker.weight(N, K, "Q4_0"), maker.columns(rows, N), nan(maker, rows, N)
    more = {"residual": residual, "norm": factors, "eps": EPS}
    narrow_matmul(x, blocks_on(weight, CPU), None, out, **facts(weight), **more)
    product = multiplied(maker, normed(maker, x, factors), weight)
    assert torch.equal(out, added(maker, product, residual))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("limit", [None, 0.5])
def test_gate_and_up_of_two_types_in_one(maker: CaseMaker, rows: int, limit: float | None) -> None:
    x, factors = maker.columns(rows, K), maker.normal32(K)
    gate, up = maker.weight(N, K, "Q4_0"), maker.weight(N, K, "Q4_1")
    more: dict[str, Any] = {} if limit is None else {"norm": factors, "eps": EPS}
    out, wanted = nan(maker, rows, N), nan(maker, rows, N)
    weights = [(blocks_on(weight, CPU), weight.qtype.name) for weight in (gate, up)]
    swiglu_matmul(x, *weights, out, limit=limit, **more)
    taken = normed(maker, x, factors) if more else x
    swiglu(multiplied(maker, taken, gate), multiplied(maker, taken, up), wanted, limit=limit)
    assert torch.equal(out, wanted)


def test_no_rows_launch_nothing(maker: CaseMaker) -> None:
    weight = maker.weight(N, K, "Q4_0")
    pair = (blocks_on(weight, CPU), "Q4_0")
    swiglu_matmul(nan(maker, 0, K), pair, pair, nan(maker, 0, N), limit=None)
    narrow_matmul(nan(maker, 0, K), pair[0], None, nan(maker, 0, N), **facts(weight))
