"""window_write: one program for a piece of a row."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.jit.cache_store import store_bf16
from luce_kernels_rocm.jit.segments import segment_of
from luce_kernels_rocm.launch import Launch


@triton.jit
def _window_write(
    kv,
    positions,
    cu_seqlens,
    slot_ids,
    ring,
    segments,
    entries,
    kv_stride,
    D: tl.constexpr,
    IS_BF16: tl.constexpr,
    B: tl.constexpr,
):
    """Where a step goes round the ring, only the last row of an entry is written."""
    row = tl.program_id(0)
    segment = segment_of(cu_seqlens, segments, row)
    slot = tl.load(slot_ids + segment).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    inside = (at < D) & (row + entries >= tl.load(cu_seqlens + segment + 1))
    source = kv + row.to(tl.int64) * kv_stride
    target = ring + (slot * entries + tl.load(positions + row) % entries) * D
    values = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    if IS_BF16:
        store_bf16(values, target, at, inside)
    else:
        tl.store(target + at, values.to(ring.dtype.element_ty), mask=inside)


def window_write(
    kv: Tensor,  # [T, D]
    batch: PackedBatch,
    ring: Tensor,  # [slots + 1, ring, D]  in place
) -> None:
    rows, width = kv.shape
    grid = (rows, triton.cdiv(width, PIECE))
    where = (batch.positions, batch.cu_seqlens, batch.slot_ids)
    launch = _launch(width, ring.dtype == torch.bfloat16)
    launch(grid, kv, *where, ring, batch.segments, ring.shape[1], kv.stride(0))


@cache
def _launch(width: int, is_bf16: bool) -> Launch:
    return Launch(_window_write, warps=PIECE_WARPS, D=width, IS_BF16=is_bf16, B=PIECE)
