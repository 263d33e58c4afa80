"""Gumbel noise as a pure function of (seed, choice, position, token id).

A counter-based generator: no state, so a token's noise does not depend on slot, row order, batch
size, or how often a step is repeated. The mixing function is the finaliser of SplitMix64 (Steele,
Lea, Flood: "Fast splittable pseudorandom number generators", 2014; constants: Stafford's variant
13). The integers are equal on every device; the logarithms are taken in float64 and rounded to
float32, so that the last-bit differences of math libraries vanish in the rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_FACTOR_1 = 0xBF58476D1CE4E5B9
_FACTOR_2 = 0x94D049BB133111EB


def row_key(seed: int, choice_index: int, position: int) -> int:
    """The key of one row's noise, as the signed int64 that tensors hold.

    `seed` is any 64-bit integer; `position` counts generated tokens from 0.
    """
    key = 0
    for word in (seed, choice_index, position):
        key = _mix_int(key + (word + 1) * _GAMMA)
    return _signed(key)


def _mix_int(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * _FACTOR_1) & _MASK
    value = ((value ^ (value >> 27)) * _FACTOR_2) & _MASK
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _mix(value: Tensor) -> Tensor:
    """`_mix_int` on int64 tensors, in place; products wrap, shifts are made logical by a mask."""
    for shift, factor in ((30, _FACTOR_1), (27, _FACTOR_2)):
        value ^= (value >> shift).bitwise_and_(_MASK >> shift)
        value *= _signed(factor)
    value ^= (value >> 31).bitwise_and_(_MASK >> 31)
    return value


def _gumbel(bits: Tensor) -> Tensor:
    """int32 bits -> float32 noise between -3.13 and 22.88.

    The uniform number, from 2^-33 to 1 - 2^-33, is exact before the logarithms.
    """
    uniform = bits.double().add_(2.0**31 + 0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_().float()


class GumbelNoise:
    """Noise for a vocabulary on one device; holds constants only."""

    def __init__(self, vocab_size: int, device: str = "cpu") -> None:
        self._vocab_size = vocab_size
        pairs = torch.arange(1, (vocab_size + 1) // 2 + 1, dtype=torch.int64, device=device)
        self._counters = pairs * _signed(_GAMMA)

    def rows(self, keys: Tensor) -> Tensor:
        """[R] int64 keys -> [R, V] float32, one value for each token id."""
        hashes = _mix(keys[:, None] + self._counters)
        return _gumbel(hashes.view(torch.int32)[:, : self._vocab_size])

    def at(self, keys: Tensor, tokens: Tensor) -> Tensor:
        """[N] int64 keys and token ids -> [N] float32: the same values as `rows` has there."""
        return gumbel_at(keys, tokens)


def gumbel_at(keys: Tensor, tokens: Tensor) -> Tensor:
    """[N] int64 keys and token ids -> [N] float32, for any vocabulary."""
    hashes = _mix(keys + ((tokens >> 1) + 1) * _signed(_GAMMA))
    halves = hashes.view(torch.int32).view(-1, 2)
    return _gumbel(halves.gather(1, (tokens & 1)[:, None])[:, 0])
