"""add: one program for a piece of a row."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.launch import Launch


@triton.jit
def _add(a, b, out, a_stride, b_stride, N: tl.constexpr, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    inside = at < N
    left = tl.load(a + row * a_stride + at, mask=inside).to(tl.float32)
    right = tl.load(b + row * b_stride + at, mask=inside).to(tl.float32)
    tl.store(out + row * N + at, (left + right).to(out.dtype.element_ty), mask=inside)


def add(
    a: Tensor,  # [R, N]
    b: Tensor,  # [R, N]
    out: Tensor,  # [R, N]
) -> None:
    rows, width = out.shape
    launch = _launch(width)
    launch((rows, triton.cdiv(width, PIECE)), a, b, out, a.stride(0), b.stride(0))


@cache
def _launch(width: int) -> Launch:
    return Launch(_add, warps=PIECE_WARPS, N=width, B=PIECE)
