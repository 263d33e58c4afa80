"""Gumbel noise by key and token, to the bits of `luce_core.sampling.noise`."""

from __future__ import annotations

import triton
import triton.language as tl

# The constants of SplitMix64 and of its variant 13, as signed numbers.
_GAMMA = tl.constexpr(0x9E3779B97F4A7C15 - (1 << 64))
_FACTOR_1 = tl.constexpr(0xBF58476D1CE4E5B9 - (1 << 64))
_FACTOR_2 = tl.constexpr(0x94D049BB133111EB - (1 << 64))
_LOW_34 = tl.constexpr((1 << 34) - 1)
_LOW_37 = tl.constexpr((1 << 37) - 1)
_LOW_33 = tl.constexpr((1 << 33) - 1)


@triton.jit
def noise_bits(key, token):
    """int32 bits of each token's noise; `key` int64."""
    value = key + ((token >> 1) + 1).to(tl.int64) * _GAMMA
    value = (value ^ ((value >> 30) & _LOW_34)) * _FACTOR_1
    value = (value ^ ((value >> 27) & _LOW_37)) * _FACTOR_2
    value = value ^ ((value >> 31) & _LOW_33)
    return tl.where((token & 1) == 1, value >> 32, value).to(tl.int32)


@triton.jit
def gumbel(bits):
    """float32 noise of int32 bits, by logarithms in float64 as the reference's."""
    uniform = (bits.to(tl.float64) + 2147483648.5) * 2.3283064365386963e-10  # 2^-32
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def may_win(score, bits, best):
    """Whether score + noise could reach `best`: found without logarithms, and never wrongly denied.

    Noise above y needs 1 - u < exp(-y). The slack covers roundings, of 1 - u and of scores."""
    gap = (2147483648.0 - bits.to(tl.float32)) * 2.3283064365386963e-10
    return gap < tl.exp(score - best) * 1.01 + 1e-6
