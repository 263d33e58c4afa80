"""Types without blocks: F32, F16, BF16 and the integer types that hold ids.

All functions of this package's format modules take blocks `[n, block_bytes]` uint8, contiguous,
and return values `[n, block_values]` float32 on the same device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def f32(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float32)


def f16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float16).float()


def bf16(blocks: Tensor) -> Tensor:
    """The upper half of a float32: shifted as bits, so that NaN payloads survive."""
    return (blocks.view(torch.int16).int() << 16).view(torch.float32)


def f64(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float64).float()


def i8(blocks: Tensor) -> Tensor:
    return blocks.view(torch.int8).float()


def i16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.int16).float()


def i32(blocks: Tensor) -> Tensor:
    return blocks.view(torch.int32).float()


def i64(blocks: Tensor) -> Tensor:
    return blocks.view(torch.int64).float()
