"""What each slot keeps beside its KV blocks: recurrent state, convolution history, replay logs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from luce_qwen_dflash2.config import DeltaConfig


@dataclass(frozen=True, slots=True)
class RecurrentCache:
    """One gated DeltaNet layer's state, float32, by slot id; the last row is the null slot.

    `conv` [slots + 1, kernel - 1, channels] and `delta` [slots + 1, H, D_k, D_v] are the state. The
    logs [slots + 1, 1 + max_draft, ...] hold what verify rows would have done to it, until replay.
    """

    conv: Tensor
    delta: Tensor
    conv_log: Tensor
    key_log: Tensor
    delta_log: Tensor
    decay_log: Tensor

    @classmethod
    def allocate(
        cls, config: DeltaConfig, *, slots: int, max_draft: int, device: torch.device
    ) -> RecurrentCache:
        """Zeroed state for `slots` slots and the null slot."""
        return cls(
            *(
                torch.zeros((slots + 1, *shape), dtype=torch.float32, device=device)
                for shape in _shapes(config, max_draft)
            )
        )

    def clear(self, slot: int) -> None:
        """The state before a slot's first token. Logs are written before they are read."""
        self.conv[slot].zero_()
        self.delta[slot].zero_()


def bytes_per_slot(config: DeltaConfig, max_draft: int) -> int:
    """Bytes of one slot in one layer."""
    return sum(4 * torch.Size(shape).numel() for shape in _shapes(config, max_draft))


def _shapes(config: DeltaConfig, max_draft: int) -> tuple[tuple[int, ...], ...]:
    rows = 1 + max_draft
    return (
        (config.kernel - 1, config.channels),
        (config.value_heads, config.key_dim, config.value_dim),
        (rows, config.channels),
        (rows, config.key_heads, config.key_dim),
        (rows, config.value_heads, config.value_dim),
        (rows, config.value_heads),
    )
