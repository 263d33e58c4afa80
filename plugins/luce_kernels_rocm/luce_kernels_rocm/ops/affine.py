"""affine: one program for a piece of a row."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.launch import Launch


@triton.jit
def _affine(x, scale, bias, out, x_stride, N: tl.constexpr, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    inside = at < N
    values = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    values = values * tl.load(scale)
    if bias is not None:
        values += tl.load(bias + at, mask=inside, other=0.0)
    tl.store(out + row * N + at, values.to(out.dtype.element_ty), mask=inside)


def affine(
    x: Tensor,  # [R, N]
    scale: Tensor,  # [1] float32
    bias: Tensor | None,  # [N] float32
    out: Tensor,  # [R, N]
) -> None:
    rows, width = out.shape
    _launch(width)((rows, triton.cdiv(width, PIECE)), x, scale, bias, out, x.stride(0))


@cache
def _launch(width: int) -> Launch:
    return Launch(_affine, warps=PIECE_WARPS, N=width, B=PIECE)
