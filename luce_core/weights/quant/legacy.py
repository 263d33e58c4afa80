"""Blocks of 32 values with one fp16 scale d (and an fp16 minimum m for the `_1` types).

Byte j of the nibbles holds value j (low) and value j + 16 (high).
"""

from __future__ import annotations

from torch import Tensor

from luce_core.weights.quant.bits import bit_rows, half, nibbles, s8


def q4_0(blocks: Tensor) -> Tensor:
    """d[2] qs[16]; value = d (q - 8)."""
    return half(blocks, 0) * (nibbles(blocks[:, 2:18]).float() - 8)


def q4_1(blocks: Tensor) -> Tensor:
    """d[2] m[2] qs[16]; value = d q + m."""
    return half(blocks, 0) * nibbles(blocks[:, 4:20]).float() + half(blocks, 2)


def q5_0(blocks: Tensor) -> Tensor:
    """d[2] qh[4] qs[16]; the fifth bit of value j is bit j of qh; value = d (q - 16)."""
    high = bit_rows(blocks[:, 2:6]).flatten(1) << 4
    return half(blocks, 0) * ((nibbles(blocks[:, 6:22]) | high).float() - 16)


def q5_1(blocks: Tensor) -> Tensor:
    """d[2] m[2] qh[4] qs[16]; value = d q + m."""
    high = bit_rows(blocks[:, 4:8]).flatten(1) << 4
    return half(blocks, 0) * (nibbles(blocks[:, 8:24]) | high).float() + half(blocks, 2)


def q8_0(blocks: Tensor) -> Tensor:
    """d[2] q[32] signed; value = d q."""
    return s8(blocks, 2, 32) * half(blocks, 0)
