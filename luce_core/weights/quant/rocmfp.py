"""The ROCmFP types: 32 small signed levels, and a scale byte for each 16 of them (or for all 32).

A block is its codes, then its scale bytes. Codes lie in a little-endian bit stream, value after
value; ROCmFP4 pairs value j (low nibble) with value j + 16 (high). A value is level * scale; a
level of zero is +0 whatever its sign bit says.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from luce_core.weights.quant.bits import nibbles, s8, shifted
from luce_core.weights.quant.grids import looked_up

# What each code stands for. ROCmFP8's codes are the signed bytes themselves.
FP2_LEVELS = (-1, 0, 1, 2)
FP3_LEVELS = (0, 1, 2, 4, 0, -1, -2, -4)
FP4_LEVELS = (0, 1, 2, 3, 4, 6, 8, 10, 0, -1, -2, -3, -4, -6, -8, -10)
FP6_LEVELS = (*range(32), *(-level for level in range(32)))

GREATEST_SCALE_BYTE = 0x7E


def scale_of_byte(byte: int) -> float:
    """4 bits of exponent, 3 of mantissa: half of what e4m3 with bias 7 is; 0 for no valid byte."""
    if byte > GREATEST_SCALE_BYTE:
        return 0.0
    exponent, mantissa = byte >> 3, byte & 7
    return mantissa * 2.0**-10 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 11)


def scales(codes: Tensor) -> Tensor:
    """Scale bytes as float32."""
    return looked_up(_scale_table().to(codes.device), codes)


def fp2(blocks: Tensor) -> Tensor:
    """qs[8] e[2]; 16 values a scale."""
    return _levels(FP2_LEVELS, shifted(blocks[:, :8], range(0, 8, 2), 3, dim=2), blocks[:, 8:10])


def fp3(blocks: Tensor) -> Tensor:
    """qs[12] e[2]: of each 3 bytes 8 codes; 16 values a scale."""
    word = _words(blocks[:, :12])
    return _levels(FP3_LEVELS, shifted(word, range(0, 24, 3), 7, dim=2), blocks[:, 12:14])


def fp4(blocks: Tensor) -> Tensor:
    """qs[16] e[2]; 16 values a scale."""
    return _levels(FP4_LEVELS, nibbles(blocks[:, :16]), blocks[:, 16:18])


def fp4_fast(blocks: Tensor) -> Tensor:
    """qs[16] e; 32 values a scale."""
    return _levels(FP4_LEVELS, nibbles(blocks[:, :16]), blocks[:, 16:17])


def fp6(blocks: Tensor) -> Tensor:
    """qs[24] e[2]: of each 3 bytes 4 codes; 16 values a scale."""
    word = _words(blocks[:, :24])
    return _levels(FP6_LEVELS, shifted(word, range(0, 24, 6), 63, dim=2), blocks[:, 24:26])


def fp8(blocks: Tensor) -> Tensor:
    """qs[32] e; signed bytes; 32 values a scale."""
    return scales(blocks[:, 32:33]) * s8(blocks, 0, 32)


def _words(field: Tensor) -> Tensor:
    """Each 3 bytes as a little-endian number, int32."""
    parts = field.reshape(field.shape[0], -1, 3).int()
    return parts[..., 0] | (parts[..., 1] << 8) | (parts[..., 2] << 16)


def _levels(table: tuple[int, ...], codes: Tensor, scale_bytes: Tensor) -> Tensor:
    """`[n, 32]` values: codes in order of values, equal shares of them for each scale."""
    levels = looked_up(torch.tensor(table, dtype=torch.float32, device=codes.device), codes)
    groups = levels.reshape(codes.shape[0], scale_bytes.shape[1], -1)
    return (scales(scale_bytes)[..., None] * groups).flatten(1)


@cache
def _scale_table() -> Tensor:
    return torch.tensor([scale_of_byte(byte) for byte in range(256)], dtype=torch.float32)
