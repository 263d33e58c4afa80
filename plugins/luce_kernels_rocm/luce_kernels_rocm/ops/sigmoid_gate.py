"""sigmoid_gate: one program for a piece of a row."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.jit.smooth import sigmoid
from luce_kernels_rocm.launch import Launch


@triton.jit
def _sigmoid_gate(
    x, gate, out, x_stride, gate_stride, N: tl.constexpr, SHARED: tl.constexpr, B: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    inside = at < N
    values = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    if SHARED:
        opened = tl.load(gate + row * gate_stride).to(tl.float32)
    else:
        opened = tl.load(gate + row * gate_stride + at, mask=inside, other=0.0).to(tl.float32)
    result = values * sigmoid(opened)
    tl.store(out + row * N + at, result.to(out.dtype.element_ty), mask=inside)


def sigmoid_gate(
    x: Tensor,  # [R, N]
    gate: Tensor,  # [R, N], or [R, 1] for all of a row
    out: Tensor,  # [R, N]
) -> None:
    rows, width = out.shape
    launch = _launch(width, gate.shape[1] == 1)
    grid = (rows, triton.cdiv(width, PIECE))
    launch(grid, x, gate, out, x.stride(0), gate.stride(0))


@cache
def _launch(width: int, shared: bool) -> Launch:
    return Launch(_sigmoid_gate, warps=PIECE_WARPS, N=width, SHARED=shared, B=PIECE)
