"""hyper_spread: one program for a piece of all streams of a row; they are added in order."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.launch import Launch


@triton.jit
def _hyper_spread(
    x,
    mix,
    y,
    out,
    x_stride,
    mix_stride,
    y_stride,
    D: tl.constexpr,
    STREAMS: tl.constexpr,
    B: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    inside = at < D
    added = tl.load(y + row * y_stride + at, mask=inside, other=0.0).to(tl.float32)
    own = mix + row * mix_stride
    for target in tl.static_range(STREAMS):
        total = added * tl.load(own + STREAMS + target)
        for stream in tl.static_range(STREAMS):
            source = x + row * x_stride + stream * D + at
            values = tl.load(source, mask=inside, other=0.0).to(tl.float32)
            total += values * tl.load(own + (2 + stream) * STREAMS + target)
        tl.store(out + (row * STREAMS + target) * D + at, total, mask=inside)


def hyper_spread(
    x: Tensor,  # [R, N, D] float32
    mix: Tensor,  # [R, N (2 + N)] float32
    y: Tensor,  # [R, D]
    out: Tensor,  # [R, N, D] float32
    *,
    streams: int,
) -> None:
    rows, width = y.shape
    grid = (rows, triton.cdiv(width, PIECE))
    launch = _launch(width, streams)
    launch(grid, x, mix, y, out, x.stride(0), mix.stride(0), y.stride(0))


@cache
def _launch(width: int, streams: int) -> Launch:
    return Launch(_hyper_spread, warps=PIECE_WARPS, D=width, STREAMS=streams, B=PIECE)
