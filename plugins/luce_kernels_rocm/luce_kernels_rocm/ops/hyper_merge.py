"""hyper_merge: one program for a piece of a row; streams are added in order."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.launch import Launch


@triton.jit
def _hyper_merge(
    x, mix, out, x_stride, mix_stride, D: tl.constexpr, STREAMS: tl.constexpr, B: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    inside = at < D
    total = tl.zeros([B], tl.float32)
    for stream in tl.static_range(STREAMS):
        source = x + row * x_stride + stream * D + at
        values = tl.load(source, mask=inside, other=0.0).to(tl.float32)
        total += values * tl.load(mix + row * mix_stride + stream)
    tl.store(out + row * D + at, total.to(out.dtype.element_ty), mask=inside)


def hyper_merge(
    x: Tensor,  # [R, N, D] float32
    mix: Tensor,  # [R, M] float32
    out: Tensor,  # [R, D]
    *,
    streams: int,
) -> None:
    rows, width = out.shape
    grid = (rows, triton.cdiv(width, PIECE))
    _launch(width, streams)(grid, x, mix, out, x.stride(0), mix.stride(0))


@cache
def _launch(width: int, streams: int) -> Launch:
    return Launch(_hyper_merge, warps=PIECE_WARPS, D=width, STREAMS=streams, B=PIECE)
