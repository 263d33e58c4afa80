"""Rotary position embedding on halves, over the first dimensions of a head."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, positions: Tensor, dims: int, base: float) -> Tensor:
    """x `[B, T, H, D]` with its first `dims` rotated; positions `[T]` or `[B, T]`.

    Dimension i is paired with i + dims/2; the angle is position * base^(-2i/dims).
    """
    rates = base ** (-torch.arange(0, dims, 2, dtype=torch.float32) / dims)
    angles = (positions[..., None].float() * rates)[..., None, :]
    cos, sin = angles.cos(), angles.sin()
    low, high, rest = x.split([dims // 2, dims // 2, x.shape[-1] - dims], dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin, rest], dim=-1)
