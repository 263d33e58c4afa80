"""kv_write: one program for a piece of a row's keys and values.

The heads of a row follow each other without gaps, in a row as in the cache, and a quant block never
crosses heads: so a row is one vector of values, or of quant blocks. The arithmetic is that of
`luce_core.ops.kv_layout` to the bit: correctly rounded divisions, and no product is contracted with
a sum.
"""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import PIECE, PIECE_WARPS
from luce_kernels_rocm.launch import Launch


@triton.jit
def _inverse(scale):
    return tl.where(scale == 0.0, 0.0, tl.div_rn(1.0, tl.where(scale == 0.0, 1.0, scale)))


@triton.jit
def _store_scale(block, scale, inside):
    tl.store(block.to(tl.pointer_type(tl.float16)), scale.to(tl.float16), mask=inside)


@triton.jit
def _store_q8_0(source, target, group, inside):
    """d[2] q[32] signed: d = max|x| / 127, halves away from zero."""
    at = tl.arange(0, 32)[None, :]
    values = tl.load(source + group * 32 + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.div_rn(tl.max(tl.abs(values), 1, keep_dims=True), 127.0)
    scaled = values * _inverse(scale)
    size = tl.abs(scaled)
    floor = tl.floor(size)
    rounded = floor + tl.floor(2.0 * (size - floor))
    quants = tl.where(scaled < 0.0, -rounded, rounded).to(tl.int32).to(tl.uint8)
    block = target + group * 34
    _store_scale(block, scale, inside)
    tl.store(block + 2 + at, quants, mask=inside)


@triton.jit
def _store_q4_0(source, target, group, inside):
    """d[2] q[16]: d = (the first x of largest |x|) / -8; byte j holds values j and j + 16."""
    at = tl.arange(0, 16)[None, :]
    low = tl.load(source + group * 32 + at, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(source + group * 32 + 16 + at, mask=inside, other=0.0).to(tl.float32)
    low_size, low_place = tl.max(
        tl.abs(low), 1, return_indices=True, return_indices_tie_break_left=True, keep_dims=True
    )
    high_size, high_place = tl.max(
        tl.abs(high), 1, return_indices=True, return_indices_tie_break_left=True, keep_dims=True
    )
    low_extreme = tl.sum(tl.where(at == low_place, low, 0.0), 1, keep_dims=True)
    high_extreme = tl.sum(tl.where(at == high_place, high, 0.0), 1, keep_dims=True)
    scale = tl.where(low_size >= high_size, low_extreme, high_extreme) * -0.125
    inverse = _inverse(scale)
    first = tl.minimum(tl.maximum((low * inverse + 8.5).to(tl.int32), 0), 15)
    second = tl.minimum(tl.maximum((high * inverse + 8.5).to(tl.int32), 0), 15)
    block = target + group * 18
    _store_scale(block, scale, inside)
    tl.store(block + 2 + at, (first | (second << 4)).to(tl.uint8), mask=inside)


@triton.jit
def store_bf16(source, target, at, inside):
    """Round to nearest even by integers: the interpreter would cut the lower half off."""
    values = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    bits = values.to(tl.uint32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    kept = tl.where(values != values, 0x7FC0, rounded)
    tl.store(target.to(tl.pointer_type(tl.uint16)) + at, kept.to(tl.uint16), mask=inside)


@triton.jit
def _store(source, target, part, TYPE: tl.constexpr, N: tl.constexpr, B: tl.constexpr):
    """Part `part`, of B values, of N values."""
    if TYPE == "q8_0" or TYPE == "q4_0":
        group = part * (B // 32) + tl.arange(0, B // 32)[:, None]
        inside = group < N // 32
        if TYPE == "q8_0":
            _store_q8_0(source, target, group, inside)
        else:
            _store_q4_0(source, target, group, inside)
    else:
        at = part * B + tl.arange(0, B)
        inside = at < N
        if TYPE == "bf16":
            store_bf16(source, target, at, inside)
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
