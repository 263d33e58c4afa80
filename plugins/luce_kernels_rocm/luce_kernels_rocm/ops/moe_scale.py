"""moe_scale: one program for a piece of one expert's values of a row."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.launch import Launch


@triton.jit
def _moe_scale(
    x,
    route,
    scale,
    out,
    x_stride,
    route_stride,
    N: tl.constexpr,
    TOP_K: tl.constexpr,
    B: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1)
    at = tl.program_id(2) * B + tl.arange(0, B)
    inside = at < N
    factor = tl.load(scale + tl.load(route + row * route_stride + place).to(tl.int32))
    values = tl.load(x + row * x_stride + place * N + at, mask=inside, other=0.0).to(tl.float32)
    target = out + (row * TOP_K + place) * N + at
    tl.store(target, (values * factor).to(out.dtype.element_ty), mask=inside)


def moe_scale(
    x: Tensor,  # [R, top_k, N]
    route: Tensor,  # [R, 2, top_k] float32: of `moe_route`
    scale: Tensor,  # [E] float32
    out: Tensor,  # [R, top_k, N]
) -> None:
    rows, top_k, width = out.shape
    grid = (rows, top_k, triton.cdiv(width, PIECE))
    _launch(width, top_k)(grid, x, route, scale, out, x.stride(0), route.stride(0))


@cache
def _launch(width: int, top_k: int) -> Launch:
    return Launch(_moe_scale, warps=PIECE_WARPS, N=width, TOP_K=top_k, B=PIECE)
