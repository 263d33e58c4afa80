"""Fused launches give what the references of their parts give one after the other."""

from __future__ import annotations

import pytest
import torch
from luce_kernels_rocm.ops.fused import Norm, Weight, add_rms_norm, norm_matmul, swiglu_matmul
from luce_kernels_rocm.weights import blocks_on
from torch import Tensor

from luce_core.ops.cases import CaseMaker
from luce_core.weights.quant_types import QuantTensor

CPU = torch.device("cpu")
N, K = 37, 256
EPS = 1e-5
# One row, a power of two missed, and one more than the narrow kernel takes.
ROWS = (1, 3, 9)


@pytest.fixture
def maker() -> CaseMaker:
    return CaseMaker(CPU, torch.float32, seed=11)


def on_device(weight: QuantTensor) -> Weight:
    return Weight(blocks_on(weight, CPU), weight.qtype.name, *weight.shape)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, EPS)


def nan(*shape: int) -> Tensor:
    return torch.full(shape, float("nan"))


def check(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-4)


def test_a_sum_and_its_norm(maker: CaseMaker) -> None:
    a, b, weight = maker.columns(5, 100), maker.normal(5, 100), maker.normal32(100)
    total, out = nan(5, 100), nan(5, 100)
    add_rms_norm(a, b, weight, total, out, eps=EPS)
    assert torch.equal(total, a + b)
    check(out, normed(a + b, weight))


@pytest.mark.parametrize("rows", ROWS)
def test_a_norm_before_a_product_and_a_residual_behind(maker: CaseMaker, rows: int) -> None:
    x, factors = maker.columns(rows, K, std=3.0), maker.normal32(K)
    weight, bias, residual = maker.weight(N, K, "Q4_K"), maker.normal32(N), maker.columns(rows, N)
    out = nan(rows, N)
    norm_matmul(x, Norm(factors, EPS), on_device(weight), bias, out, residual)
    check(out, normed(x, factors) @ weight.dequantize().T + bias + residual)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("limit", [None, 0.5])
def test_gate_and_up_of_two_types_in_one(maker: CaseMaker, rows: int, limit: float | None) -> None:
    x, factors = maker.columns(rows, K), maker.normal32(K)
    gate, up = maker.weight(N, K, "Q4_0"), maker.weight(N, K, "Q6_K")
    norm = None if limit is None else Norm(factors, EPS)
    out = nan(rows, N)
    swiglu_matmul(x, norm, on_device(gate), on_device(up), out, limit=limit)
    taken = x if norm is None else normed(x, factors)
    opened, values = taken @ gate.dequantize().T, taken @ up.dequantize().T
    if limit is not None:
        opened, values = opened.clamp(max=limit), values.clamp(-limit, limit)
    check(out, torch.nn.functional.silu(opened) * values)
