"""Per-slot rings of the draft's keys and values, and where a token's entry lies in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from luce_qwen_dflash2.draft.config import DraftConfig


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
        self._rows = {
            size: torch.zeros(max_rows, dtype=torch.int32, device=device) for size in set(sizes)
        }

        def made(size: int) -> Tensor:
            shape = (slots + 1, size, config.kv_heads, config.head_dim)
            return torch.zeros(shape, dtype=dtype, device=device)

        self.layers = tuple(Ring(made(size), made(size), self._rows[size]) for size in sizes)

    @property
    def longest(self) -> int:
        """Positions that the longest ring holds: older ones need not be written."""
        return max(self._rows)

    def place(
        self, slot_ids: Sequence[int], first_positions: Sequence[int], counts: Sequence[int]
    ) -> None:
        """Set `rows` for an injection of counts[i] tokens of a slot from a position on. Tokens that
        a later one of the same injection overwrites go to the null slot."""
        slots = np.repeat(slot_ids, counts)
        stops = np.add(first_positions, counts)
        before_stop = np.concatenate([np.arange(count, 0, -1) for count in counts])
        positions = np.repeat(stops, counts) - before_stop
        for size, rows in self._rows.items():
            placed: NDArray[np.int64] = slots * size + positions % size
            placed[before_stop > size] = self._slots * size
            rows[: len(placed)] = torch.from_numpy(placed.astype(np.int32))


def ring_sizes(config: DraftConfig, max_context: int) -> tuple[int, ...]:
    """Entries of each layer's ring."""
    return tuple(min(window or max_context, max_context) for window in config.windows)


def ring_bytes(config: DraftConfig, max_context: int, dtype: torch.dtype) -> int:
    """Bytes of one slot's rings."""
    entry = 2 * config.kv_heads * config.head_dim * dtype.itemsize
    return entry * sum(ring_sizes(config, max_context))
