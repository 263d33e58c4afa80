"""gather_rows: one program for a piece of a row."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.launch import Launch


@triton.jit
def _gather_rows(x, rows, out, x_stride, N: tl.constexpr, B: tl.constexpr):
    row = tl.program_id(0)
    source = tl.load(rows + row).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    inside = at < N
    values = tl.load(x + source * x_stride + at, mask=inside)
    tl.store(out + row.to(tl.int64) * N + at, values, mask=inside)


def gather_rows(
    x: Tensor,  # [T, N]
    rows: Tensor,  # [L]
    out: Tensor,  # [L, N]
) -> None:
    count, width = out.shape
    _launch(width)((count, triton.cdiv(width, PIECE)), x, rows, out, x.stride(0))


@cache
def _launch(width: int) -> Launch:
    return Launch(_gather_rows, warps=PIECE_WARPS, N=width, B=PIECE)
