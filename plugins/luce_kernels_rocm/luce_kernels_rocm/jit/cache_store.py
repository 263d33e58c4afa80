"""Values in registers as rows of a cache.

The arithmetic is that of `luce_core.ops.kv_layout` to the bit if the launch is exact: correctly
rounded divisions, and no product is contracted with a sum.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _inverse(scale):
    return tl.where(scale == 0.0, 0.0, tl.div_rn(1.0, tl.where(scale == 0.0, 1.0, scale)))


@triton.jit
def _store_scale(block, scale, inside):
    tl.store(block.to(tl.pointer_type(tl.float16)), scale.to(tl.float16), mask=inside)


@triton.jit
def store_q8_0(values, block, inside):
    """d[2] q[32] signed: d = max|x| / 127, halves away from zero.

    `values` [G, 32] float32; `block` [G, 1] points to the blocks, of which those `inside` exist."""
    at = tl.arange(0, 32)[None, :]
    scale = tl.div_rn(tl.max(tl.abs(values), 1, keep_dims=True), 127.0)
    scaled = values * _inverse(scale)
    size = tl.abs(scaled)
    floor = tl.floor(size)
    rounded = floor + tl.floor(2.0 * (size - floor))
    quants = tl.where(scaled < 0.0, -rounded, rounded).to(tl.int32).to(tl.uint8)
    _store_scale(block, scale, inside)
    tl.store(block + 2 + at, quants, mask=inside)


@triton.jit
def store_q4_0(low, high, block, inside):
    """d[2] q[16]: d = (the first x of largest |x|) / -8; byte j holds values j and j + 16.

    `low` and `high` [G, 16] float32 are the halves of each block; `block` and `inside` as above."""
    at = tl.arange(0, 16)[None, :]
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
    _store_scale(block, scale, inside)
    tl.store(block + 2 + at, (first | (second << 4)).to(tl.uint8), mask=inside)


@triton.jit
def store_bf16(values, target, at, inside):
    """Round float32 `values` to nearest even by integers: the interpreter would cut the lower half
    off."""
    bits = values.to(tl.uint32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    kept = tl.where(values != values, 0x7FC0, rounded)
    tl.store(target.to(tl.pointer_type(tl.uint16)) + at, kept.to(tl.uint16), mask=inside)


@triton.jit
def store_row(values, row, TYPE: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """A row [BD] float32 of D values, at the cache's row that `row` points to."""
    d = tl.arange(0, BD)
    if TYPE == "q8_0":
        group = tl.arange(0, BD // 32)[:, None]
        store_q8_0(tl.reshape(values, [BD // 32, 32]), row + group * 34, group < D // 32)
    elif TYPE == "q4_0":
        group = tl.arange(0, BD // 32)[:, None]
        halves = tl.permute(tl.reshape(values, [BD // 32, 2, 16]), (0, 2, 1))
        low, high = tl.split(halves)
        store_q4_0(low, high, row + group * 18, group < D // 32)
    elif TYPE == "bf16":
        store_bf16(values, row, d, d < D)
    else:
        tl.store(row + d, values.to(row.dtype.element_ty), mask=d < D)
