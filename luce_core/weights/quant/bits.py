"""Fields of a block: scales, bytes and the bits inside bytes."""

from __future__ import annotations

import torch
from torch import Tensor


def _copied(field: Tensor) -> Tensor:
    """A fresh tensor: a field of a single block is already contiguous, but may start at an offset
    that cannot be viewed as wider words."""
    return field.clone(memory_format=torch.contiguous_format)


def half(blocks: Tensor, start: int) -> Tensor:
    """The fp16 number at byte `start` of each block, as float32 `[n, 1]`."""
    return _copied(blocks[:, start : start + 2]).view(torch.float16).float()


def u16(blocks: Tensor, start: int, count: int) -> Tensor:
    """`count` little-endian 16-bit words from byte `start`, as int32 `[n, count]`."""
    words = _copied(blocks[:, start : start + 2 * count]).view(torch.int16)
    return words.int() & 0xFFFF


def u32(blocks: Tensor, start: int, count: int) -> Tensor:
    """`count` little-endian 32-bit words from byte `start`, as int64 `[n, count]`."""
    words = _copied(blocks[:, start : start + 4 * count]).view(torch.int32)
    return words.long() & 0xFFFFFFFF


def s8(blocks: Tensor, start: int, count: int) -> Tensor:
    """`count` signed bytes from byte `start`, as float32 `[n, count]`."""
    return _copied(blocks[:, start : start + count]).view(torch.int8).float()


def shifted(field: Tensor, shifts: range, mask: int, dim: int) -> Tensor:
    """`(field >> shift) & mask` for each shift, along a new dimension `dim`."""
    return torch.stack([(field >> shift) & mask for shift in shifts], dim=dim)


def nibbles(field: Tensor) -> Tensor:
    """`[..., m]` bytes to `[..., 2 m]`: all low nibbles, then all high nibbles."""
    return torch.cat([field & 0x0F, field >> 4], dim=-1)


def bit_rows(field: Tensor) -> Tensor:
    """`[..., m]` to `[..., m, 8]`: the bits of each byte, lowest first."""
    return shifted(field, range(8), 1, dim=-1)
