"""kv_write: one program for a piece of a row's keys and values.

The heads of a row follow each other without gaps, in a row as in the cache, and a quant block never
crosses heads: so a row is one vector of values, or of quant blocks.
"""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.jit.cache_store import store_bf16, store_q4_0, store_q8_0
from luce_kernels_rocm.launch import Launch


@triton.jit
def _q8_0(source, target, group, inside):
    at = tl.arange(0, 32)[None, :]
    values = tl.load(source + group * 32 + at, mask=inside, other=0.0).to(tl.float32)
    store_q8_0(values, target + group * 34, inside)


@triton.jit
def _q4_0(source, target, group, inside):
    at = tl.arange(0, 16)[None, :]
    low = tl.load(source + group * 32 + at, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(source + group * 32 + 16 + at, mask=inside, other=0.0).to(tl.float32)
    store_q4_0(low, high, target + group * 18, inside)


@triton.jit
def _store(source, target, part, TYPE: tl.constexpr, N: tl.constexpr, B: tl.constexpr):
    """Part `part`, of B values, of N values."""
    if TYPE == "q8_0" or TYPE == "q4_0":
        group = part * (B // 32) + tl.arange(0, B // 32)[:, None]
        inside = group < N // 32
        if TYPE == "q8_0":
            _q8_0(source, target, group, inside)
        else:
            _q4_0(source, target, group, inside)
    else:
        at = part * B + tl.arange(0, B)
        inside = at < N
        if TYPE == "bf16":
            values = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
            store_bf16(values, target, at, inside)
        else:
            values = tl.load(source + at, mask=inside)
            tl.store(target + at, values.to(target.dtype.element_ty), mask=inside)


@triton.jit
def _kv_write(
    k,
    v,
    kv_rows,
    k_cache,
    v_cache,
    k_stride,
    v_stride,
    N: tl.constexpr,
    K_TYPE: tl.constexpr,
    V_TYPE: tl.constexpr,
    K_ROW: tl.constexpr,
    V_ROW: tl.constexpr,
    B: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    slot = tl.load(kv_rows + row).to(tl.int64)
    _store(k + row * k_stride, k_cache + slot * K_ROW, part, K_TYPE, N, B)
    _store(v + row * v_stride, v_cache + slot * V_ROW, part, V_TYPE, N, B)


def kv_write(
    k: Tensor,  # [T, kv_heads, D]
    v: Tensor,  # [T, kv_heads, D]
    kv_rows: Tensor,  # [T]
    k_cache: Tensor,  # [blocks + 1, block_size, kv_heads, row]  in place
    v_cache: Tensor,  # [blocks + 1, block_size, kv_heads, row]  in place
    *,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    k_type: str,
    v_type: str,
) -> None:
    values = kv_heads * head_dim
    launch = _launch(values, k_type, v_type, k_cache.stride(1), v_cache.stride(1))
    grid = (k.shape[0], triton.cdiv(values, PIECE))
    launch(grid, k, v, kv_rows, k_cache, v_cache, k.stride(0), v.stride(0))


@cache
def _launch(values: int, k_type: str, v_type: str, k_row: int, v_row: int) -> Launch:
    return Launch(
        _kv_write,
        warps=PIECE_WARPS,
        exact=True,
        N=values,
        K_TYPE=k_type,
        V_TYPE=v_type,
        K_ROW=k_row,
        V_ROW=v_row,
        B=PIECE,
    )
