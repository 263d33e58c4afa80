"""Rows of the paged cache as values, dequantised in registers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cache_tile(
    cache,
    row,
    inside,
    piece,
    TYPE: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """[KEYS, BD] values of piece number `piece`, one or [KEYS, 1], of the heads' rows `row` [KEYS]
    of a cache; 0 where `inside` [KEYS] is false or past D."""
    KEYS: tl.constexpr = row.shape[0]
    if TYPE == "q8_0":
        group = piece * (BD // 32) + tl.arange(0, BD // 32)[None, :]
        block = cache + row[:, None] * (D // 32 * 34) + group * 34
        kept = inside[:, None] & (group < D // 32)
        scale = tl.load(block.to(tl.pointer_type(tl.float16)), mask=kept, other=0.0)
        at = tl.arange(0, 32)[None, None, :]
        codes = tl.load(block[:, :, None] + 2 + at, mask=kept[:, :, None], other=0).to(tl.int8)
        # float16 rounds the product as float32 would, with half the registers.
        WIDE: tl.constexpr = tl.float16 if COMPUTE == tl.float16 else tl.float32  # noqa: SIM300
        values = codes.to(WIDE) * scale.to(WIDE)[:, :, None]
        return tl.reshape(values.to(COMPUTE), [KEYS, BD])
    elif TYPE == "q4_0":
        group = piece * (BD // 32) + tl.arange(0, BD // 32)[None, :]
        block = cache + row[:, None] * (D // 32 * 18) + group * 18
        kept = inside[:, None] & (group < D // 32)
        scale = tl.load(block.to(tl.pointer_type(tl.float16)), mask=kept, other=0.0)
        at = tl.arange(0, 16)[None, None, :]
        codes = tl.load(block[:, :, None] + 2 + at, mask=kept[:, :, None], other=0).to(tl.int32)
        step = scale.to(tl.float32)[:, :, None]
        low = (((codes & 15) - 8).to(tl.float32) * step).to(COMPUTE)
        high = (((codes >> 4) - 8).to(tl.float32) * step).to(COMPUTE)
        pairs = tl.permute(tl.join(low, high), (0, 1, 3, 2))
        return tl.reshape(pairs, [KEYS, BD])
    else:
        d = piece * BD + tl.arange(0, BD)[None, :]
        kept = inside[:, None] & (d < D)
        if TYPE == "bf16":
            source = cache.to(tl.pointer_type(tl.uint16)) + row[:, None] * D + d
            bits = tl.load(source, mask=kept, other=0).to(tl.uint32) << 16
            return bits.to(tl.float32, bitcast=True).to(COMPUTE)
        else:
            return tl.load(cache + row[:, None] * D + d, mask=kept, other=0.0).to(COMPUTE)
