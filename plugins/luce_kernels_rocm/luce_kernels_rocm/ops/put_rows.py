"""put_rows: one program for a piece of a row."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.launch import Launch


@triton.jit
def _put_rows(
    x,
    places,
    buffer,
    x_stride,
    buffer_stride,
    N: tl.constexpr,
    COLUMN: tl.constexpr,
    B: tl.constexpr,
):
    row = tl.program_id(0)
    at = tl.program_id(1) * B + tl.arange(0, B)
    inside = at < N
    values = tl.load(x + row.to(tl.int64) * x_stride + at, mask=inside)
    target = buffer + tl.load(places + row).to(tl.int64) * buffer_stride + COLUMN + at
    tl.store(target, values.to(buffer.dtype.element_ty), mask=inside)


def put_rows(
    x: Tensor,  # [T, N]
    batch: PackedBatch,
    places: Tensor,  # [max_rows] int32, of which the first T count
    buffer: Tensor,  # [rows, F]  in place
    *,
    column: int,
) -> None:
    rows, width = x.shape
    grid = (rows, triton.cdiv(width, PIECE))
    _launch(width, column)(grid, x, places, buffer, x.stride(0), buffer.stride(0))


@cache
def _launch(width: int, column: int) -> Launch:
    return Launch(_put_rows, warps=PIECE_WARPS, N=width, COLUMN=column, B=PIECE)
