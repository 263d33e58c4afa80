"""Scores as whole numbers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rank_of(score):
    """Whole numbers 0 .. 2^32 - 1, int64, that ascend with float32 scores; -0 ranks as 0 does."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    ascending = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return ascending.to(tl.int64) + 2147483648
