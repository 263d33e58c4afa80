"""rms_norm: one program for each row, or head of a row, in one pass."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import warps_for
from luce_kernels_rocm.launch import Launch


@triton.jit
def _rms_norm(x, weight, out, x_stride, eps, HEADS: tl.constexpr, D: tl.constexpr, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, B)
    inside = at < D
    values = tl.load(x + row * x_stride + head * D + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / D + eps)
    factor = tl.load(weight + at, mask=inside, other=0.0)
    normed = values * scale * factor
    tl.store(out + (row * HEADS + head) * D + at, normed.to(out.dtype.element_ty), mask=inside)


def rms_norm(
    x: Tensor,  # [R, D] or [R, H, D]
    weight: Tensor,  # [D] float32
    out: Tensor,  # like x
    *,
    eps: float,
) -> None:
    heads = x.shape[1] if x.ndim == 3 else 1
    launch = _launch(heads, x.shape[-1])
    launch((x.shape[0], heads), x, weight, out, x.stride(0), eps)


@cache
def _launch(heads: int, width: int) -> Launch:
    block = triton.next_power_of_2(width)
    return Launch(_rms_norm, warps=warps_for(block), HEADS=heads, D=width, B=block)
