"""The state arithmetic of the gated delta rule: one definition for decode, verify and replay.

Products and sums are rounded one by one, so that replaying logged rows gives the bits of decoding
them. Shapes are those of one row: the bits cannot depend on how many rows a step has.
"""

from __future__ import annotations

import torch
from torch import Tensor


def key_head_of(value_heads: int, key_heads: int, device: torch.device) -> Tensor:
    """The key head of each value head [H]: h mod n_k, as converters lay out value heads."""
    return torch.arange(value_heads, device=device) % key_heads


def decay_(state: Tensor, decay: Tensor) -> None:
    """state [H, D_k, D_v] *= decay [H]."""
    state.mul_(decay[:, None, None])


def read(state: Tensor, key: Tensor) -> Tensor:
    """state^T key by head: [H, D_v] of key [H, D_k]."""
    return (state * key[:, :, None]).sum(1)


def add_(state: Tensor, key: Tensor, delta: Tensor) -> None:
    """state += key delta^T by head, for key [H, D_k] and delta [H, D_v]."""
    state.add_(key[:, :, None] * delta[:, None, :])
