"""hyper_begin: one program for a piece of a row."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.launch import Launch


@triton.jit
def _hyper_begin(x, out, x_stride, D: tl.constexpr, STREAMS: tl.constexpr, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    inside = at < D
    values = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    for stream in tl.static_range(STREAMS):
        tl.store(out + (row * STREAMS + stream) * D + at, values, mask=inside)


def hyper_begin(
    x: Tensor,  # [R, D]
    out: Tensor,  # [R, N, D] float32
    *,
    streams: int,
) -> None:
    rows, width = x.shape
    _launch(width, streams)((rows, triton.cdiv(width, PIECE)), x, out, x.stride(0))


@cache
def _launch(width: int, streams: int) -> Launch:
    return Launch(_hyper_begin, warps=PIECE_WARPS, D=width, STREAMS=streams, B=PIECE)
