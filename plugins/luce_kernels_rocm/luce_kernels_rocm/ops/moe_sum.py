"""moe_sum: one program for a piece of a row; experts are added in the route's order."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.launch import Launch


@triton.jit
def _moe_sum(
    x, route, out, x_stride, route_stride, N: tl.constexpr, TOP_K: tl.constexpr, B: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    inside = at < N
    total = tl.zeros([B], tl.float32)
    for place in tl.static_range(TOP_K):
        share = tl.load(route + row * route_stride + TOP_K + place)
        source = x + row * x_stride + place * N + at
        total += tl.load(source, mask=inside, other=0.0).to(tl.float32) * share
    tl.store(out + row * N + at, total.to(out.dtype.element_ty), mask=inside)


def moe_sum(
    x: Tensor,  # [R, top_k, N]
    route: Tensor,  # [R, 2, top_k] float32: of `moe_route`
    out: Tensor,  # [R, N]
) -> None:
    rows, width = out.shape
    grid = (rows, triton.cdiv(width, PIECE))
    _launch(width, x.shape[1])(grid, x, route, out, x.stride(0), route.stride(0))


@cache
def _launch(width: int, top_k: int) -> Launch:
    return Launch(_moe_sum, warps=PIECE_WARPS, N=width, TOP_K=top_k, B=PIECE)
