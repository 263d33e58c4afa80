"""Smooth functions with one result for one input, wherever it lies in a tensor.

torch computes the last elements of a tensor with another exp than the vectors before them, so the
bits of a float32 result depend on the row count. Rounded from float64 they do not.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), float32."""
    return x.double().sigmoid().float()


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), float32."""
    return torch.nn.functional.silu(x.double()).float()


def decay_rate(x: Tensor, scale: Tensor) -> Tensor:
    """exp(scale * softplus(x)), float32; scale is negative, so the result lies in 0..1."""
    return (scale.double() * torch.nn.functional.softplus(x.double())).exp().float()
