"""ring_write: one program for a piece of a row's keys and values."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.launch import Launch


@triton.jit
def _ring_write(
    k, v, ring_rows, k_ring, v_ring, k_stride, v_stride, N: tl.constexpr, B: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    inside = at < N
    target = tl.load(ring_rows + row).to(tl.int64) * N + at
    keys = tl.load(k + row * k_stride + at, mask=inside).to(tl.float32)
    tl.store(k_ring + target, keys.to(k_ring.dtype.element_ty), mask=inside)
    values = tl.load(v + row * v_stride + at, mask=inside).to(tl.float32)
    tl.store(v_ring + target, values.to(v_ring.dtype.element_ty), mask=inside)


def ring_write(
    k: Tensor,  # [T, kv_heads, D]
    v: Tensor,  # [T, kv_heads, D]
    batch: PackedBatch,
    ring_rows: Tensor,  # [max_rows] int32, of which the first T count
    k_ring: Tensor,  # [slots + 1, ring, kv_heads, D]  in place
    v_ring: Tensor,  # [slots + 1, ring, kv_heads, D]  in place
    *,
    kv_heads: int,
    head_dim: int,
) -> None:
    values = kv_heads * head_dim
    grid = (k.shape[0], triton.cdiv(values, PIECE))
    _launch(values)(grid, k, v, ring_rows, k_ring, v_ring, k.stride(0), v.stride(0))


@cache
def _launch(values: int) -> Launch:
    return Launch(_ring_write, warps=PIECE_WARPS, N=values, B=PIECE)
