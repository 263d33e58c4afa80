"""swiglu: one program for a piece of a row."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.launch import Launch


@triton.jit
def gated(gate, up, LIMIT: tl.constexpr):
    """silu(gate) * up of float32 values, both cut to a limit first if there is one."""
    if LIMIT is not None:
        gate = tl.minimum(gate, LIMIT)
        up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _swiglu(
    gate, up, out, gate_stride, up_stride, N: tl.constexpr, LIMIT: tl.constexpr, B: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    inside = at < N
    opened = tl.load(gate + row * gate_stride + at, mask=inside, other=0.0).to(tl.float32)
    values = tl.load(up + row * up_stride + at, mask=inside, other=0.0).to(tl.float32)
    result = gated(opened, values, LIMIT)
    tl.store(out + row * N + at, result.to(out.dtype.element_ty), mask=inside)


def swiglu(
    gate: Tensor,  # [R, N]
    up: Tensor,  # [R, N]
    out: Tensor,  # [R, N]
    *,
    limit: float | None,
) -> None:
    rows, width = out.shape
    launch = _launch(width, limit)
    launch((rows, triton.cdiv(width, PIECE)), gate, up, out, gate.stride(0), up.stride(0))


@cache
def _launch(width: int, limit: float | None) -> Launch:
    return Launch(_swiglu, warps=PIECE_WARPS, N=width, LIMIT=limit, B=PIECE)
