"""Per-slot rings of the draft's keys and values, and where a token's entry lies in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from luce_qwen_dflash2.draft.config import DraftConfig
from luce_qwen_dflash2.host_filled import HostFilled


class Ring(NamedTuple):
    """The rings of one layer: the entry of a slot's position p lies at p % ring."""

    k: Tensor  # [slots + 1, ring, kv_heads, D]
    v: Tensor  # [slots + 1, ring, kv_heads, D]
    rows: Tensor  # [max_rows] int32: where the rows of the next injection go


class Rings:
    """The rings of all layers for `slots` slots and the null slot, which takes rows that are not
    kept. A layer's ring is its window, or `max_context` if it sees everything."""

    def __init__(
        self,
        config: DraftConfig,
        *,
        slots: int,
        max_context: int,
        max_rows: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._slots = slots
        sizes = ring_sizes(config, max_context)
        self._rows = {size: HostFilled(max_rows, device) for size in set(sizes)}

        def made(size: int) -> Tensor:
            shape = (slots + 1, size, config.kv_heads, config.head_dim)
            return torch.zeros(shape, dtype=dtype, device=device)

        self.layers = tuple(Ring(made(size), made(size), self._rows[size].tensor) for size in sizes)

    @property
    def longest(self) -> int:
        """Positions that the longest ring holds: older ones need not be written."""
        return max(self._rows)

    def place(self, parts: Iterable[tuple[int, int, int]]) -> None:
        """Set `rows` for an injection of `count` tokens from `position` on, for each (slot id,
        position, count). Tokens that a later one of the same part overwrites go to the null slot.
        """
        parts = list(parts)
        for size, rows in self._rows.items():
            placed: list[int] = []
            for slot_id, position, count in parts:
                unseen = max(0, count - size)
                placed += [self._slots * size] * unseen
                first = slot_id * size
                placed += [first + p % size for p in range(position + unseen, position + count)]
            rows.fill(placed)


def ring_sizes(config: DraftConfig, max_context: int) -> tuple[int, ...]:
    """Entries of each layer's ring."""
    return tuple(min(window or max_context, max_context) for window in config.windows)


def ring_bytes(config: DraftConfig, max_context: int, dtype: torch.dtype) -> int:
    """Bytes of one slot's rings."""
    entry = 2 * config.kv_heads * config.head_dim * dtype.itemsize
    return entry * sum(ring_sizes(config, max_context))
