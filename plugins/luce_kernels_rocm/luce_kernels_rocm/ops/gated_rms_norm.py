"""gated_rms_norm: one program for each head of a row."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import warps_for
from luce_kernels_rocm.jit.smooth import silu
from luce_kernels_rocm.launch import Launch


@triton.jit
def _gated_rms_norm(
    x,
    z,
    weight,
    out,
    x_stride,
    z_stride,
    eps,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, B)
    inside = at < D
    values = tl.load(x + row * x_stride + head * D + at, mask=inside, other=0.0).to(tl.float32)
    gates = tl.load(z + row * z_stride + head * D + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / D + eps)
    normed = values * scale * tl.load(weight + at, mask=inside, other=0.0)
    target = out + (row * HEADS + head) * D + at
    tl.store(target, (normed * silu(gates)).to(out.dtype.element_ty), mask=inside)


def gated_rms_norm(
    x: Tensor,  # [R, H, D]
    z: Tensor,  # [R, H, D]
    weight: Tensor,  # [D] float32
    out: Tensor,  # [R, H, D]
    *,
    eps: float,
) -> None:
    rows, heads, width = out.shape
    launch = _launch(heads, width)
    launch((rows, heads), x, z, weight, out, x.stride(0), z.stride(0), eps)


@cache
def _launch(heads: int, width: int) -> Launch:
    block = triton.next_power_of_2(width)
    return Launch(_gated_rms_norm, warps=warps_for(block), HEADS=heads, D=width, B=block)
