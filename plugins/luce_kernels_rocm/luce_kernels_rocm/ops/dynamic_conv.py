"""dynamic_conv: one program for a piece of a row."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.jit.segments import segment_of
from luce_kernels_rocm.launch import Launch


@triton.jit
def _dynamic_conv(
    x,
    delta,
    cu_seqlens,
    base,
    out,
    segments,
    x_stride,
    delta_stride,
    H: tl.constexpr,
    SIDE: tl.constexpr,
    TAPS: tl.constexpr,
    GROUP: tl.constexpr,
    B: tl.constexpr,
):
    row = tl.program_id(0)
    at = tl.program_id(1) * B + tl.arange(0, B)
    inside = at < H
    first = tl.load(cu_seqlens + segment_of(cu_seqlens, segments, row))
    changes = delta + row.to(tl.int64) * delta_stride + SIDE * TAPS * (H // GROUP) + at // GROUP
    total = tl.zeros([B], tl.float32)
    for tap in tl.static_range(TAPS):
        kernel = tl.load(base + (SIDE * TAPS + tap) * H + at, mask=inside, other=0.0)
        change = tl.load(changes + tap * (H // GROUP), mask=inside, other=0.0).to(tl.float32)
        source = x + (row - tap).to(tl.int64) * x_stride + at
        earlier = tl.load(source, mask=inside & (row - tap >= first), other=0.0).to(tl.float32)
        total += (kernel + change) * earlier
    tl.store(out + row.to(tl.int64) * H + at, total.to(out.dtype.element_ty), mask=inside)


def dynamic_conv(
    x: Tensor,  # [T, H]
    delta: Tensor,  # [T, 2 * taps * H / group], of sides, taps, groups
    batch: PackedBatch,
    base: Tensor,  # [2, taps, H] float32
    out: Tensor,  # [T, H]
    *,
    side: int,
    taps: int,
    group: int,
) -> None:
    rows, width = out.shape
    grid = (rows, triton.cdiv(width, PIECE))
    steps = (batch.segments, x.stride(0), delta.stride(0))
    _launch(width, side, taps, group)(grid, x, delta, batch.cu_seqlens, base, out, *steps)


@cache
def _launch(width: int, side: int, taps: int, group: int) -> Launch:
    return Launch(
        _dynamic_conv, warps=PIECE_WARPS, H=width, SIDE=side, TAPS=taps, GROUP=group, B=PIECE
    )
