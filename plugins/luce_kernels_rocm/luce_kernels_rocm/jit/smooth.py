"""Smooth functions of float32 values."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    """log(1 + exp(x)), right to a few units in the last place of float64 for any x. The logarithm
    of 1 + u is corrected by what the sum has lost (W. Kahan)."""
    wide = x.to(tl.float64)
    u = tl.exp(-tl.abs(wide))
    total = 1.0 + u
    is_lost = total == 1.0
    log = tl.log(total) * (u / tl.where(is_lost, 1.0, total - 1.0))
    return tl.maximum(wide, 0.0) + tl.where(is_lost, u, log)


@triton.jit
def sqrt_softplus(x):
    """By way of float64: far below zero the softplus is no float32 number, but its root is."""
    return tl.sqrt(softplus(x)).to(tl.float32)
