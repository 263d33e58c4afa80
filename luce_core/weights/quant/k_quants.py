"""Super-blocks of 256 values: one fp16 scale d (and minimum dmin), and a small scale per group."""

from __future__ import annotations

import torch
from torch import Tensor

from luce_core.weights.quant.bits import half, nibbles, s8, shifted


def q2_k(blocks: Tensor) -> Tensor:
    """scales[16] qs[64] d[2] dmin[2]; 16 groups of 16; value = d (s & 15) q - dmin (s >> 4)."""
    scales = blocks[:, 0:16]
    step = half(blocks, 80) * (scales & 0x0F).float()
    least = half(blocks, 82) * (scales >> 4).float()
    q = _two_bits(blocks[:, 16:80]).view(-1, 16, 16).float()
    return (step[..., None] * q - least[..., None]).flatten(1)


def q3_k(blocks: Tensor) -> Tensor:
    """hmask[32] qs[64] scales[12] d[2]; 16 groups of 16; value = d (s - 32) (q - 4 + 4 h).

    Scale j has its low four bits in nibble j of scales[0:8], its high two in scales[8:12].
    """
    low = nibbles(blocks[:, 96:104])
    high = shifted(blocks[:, 104:108], range(0, 8, 2), 3, dim=1).flatten(1)
    step = half(blocks, 108) * ((low | (high << 4)).float() - 32)
    q = _two_bits(blocks[:, 32:96]).view(-1, 16, 16).float()
    h = shifted(blocks[:, 0:32], range(8), 1, dim=1).view(-1, 16, 16).float()
    return (step[..., None] * (q - 4 + 4 * h)).flatten(1)


def q4_k(blocks: Tensor) -> Tensor:
    """d[2] dmin[2] scales[12] qs[128]; 8 groups of 32; value = d s q - dmin m."""
    step, least = _scales_and_minima(blocks)
    q = nibbles(blocks[:, 16:144].view(-1, 4, 32)).view(-1, 8, 32)
    return (step * q.float() - least).flatten(1)


def q5_k(blocks: Tensor) -> Tensor:
    """d[2] dmin[2] scales[12] qh[32] qs[128]; as q4_k, the fifth bit of group g is bit g of qh."""
    step, least = _scales_and_minima(blocks)
    low = nibbles(blocks[:, 48:176].view(-1, 4, 32)).view(-1, 8, 32)
    high = shifted(blocks[:, 16:48], range(8), 1, dim=1)
    return (step * (low | (high << 4)).float() - least).flatten(1)


def q6_k(blocks: Tensor) -> Tensor:
    """ql[128] qh[64] scales[16] signed d[2]; 16 groups of 16; value = d s (q - 32)."""
    step = half(blocks, 208) * s8(blocks, 192, 16)
    low = nibbles(blocks[:, 0:128].view(-1, 2, 64)).flatten(1)
    high = _two_bits(blocks[:, 128:192])
    q = (low | (high << 4)).view(-1, 16, 16).float() - 32
    return (step[..., None] * q).flatten(1)


def _two_bits(field: Tensor) -> Tensor:
    """`[n, 32 m]` bytes to `[n, 128 m]`: of each 32 bytes the lowest bit pairs, then the next."""
    return shifted(field.view(field.shape[0], -1, 32), range(0, 8, 2), 3, dim=2).flatten(1)


def _scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """d s and dmin m of a q4_k or q5_k block, both `[n, 8, 1]`.

    The six-bit s and m of groups 0 to 3 are the low bits of scales[0:4] and scales[4:8]; those of
    groups 4 to 7 have their low nibbles in scales[8:12] and their high two bits atop the former.
    """
    s, m, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([s & 0x3F, (rest & 0x0F) | ((s >> 2) & 0x30)], dim=1)
    minima = torch.cat([m & 0x3F, (rest >> 4) | ((m >> 2) & 0x30)], dim=1)
    step = half(blocks, 0) * scales.float()
    least = half(blocks, 2) * minima.float()
    return step[..., None], least[..., None]
