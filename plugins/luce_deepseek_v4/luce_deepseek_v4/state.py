"""What attention keeps: rings and open pools by slot, compressed entries by block."""

from __future__ import annotations

import torch
from torch import Tensor

from luce_deepseek_v4.ops.entry_cache import EntryLayout
from luce_deepseek_v4.room import Room


class Ring:
    """A layer's newest rows by slot, key and value in one: [slots + 1, ring, dim]."""

    def __init__(self, dim: int, dtype: torch.dtype) -> None:
        self._dim = dim
        self._dtype = dtype
        self.rows = torch.empty(0)

    def allocate(self, room: Room) -> None:
        shape = (room.slots + 1, room.ring, self._dim)
        self.rows = torch.zeros(shape, dtype=self._dtype, device=room.device)

    def clear(self, slot: int) -> None:
        self.rows[slot].zero_()

    def bytes_per_slot(self, ring: int) -> int:
        return ring * self._dim * self._dtype.itemsize


class EntryState:
    """A compressor's state: its pool by slot [slots + 1, series, 3, dim], its entries by block."""

    def __init__(self, layout: EntryLayout, *, overlap: bool) -> None:
        self.layout = layout
        self._shape = (2 if overlap else 1, 3, layout.head_dim)
        self.pool = torch.empty(0)
        self.entries = torch.empty(0)

    def allocate(self, room: Room) -> None:
        shape = (room.slots + 1, *self._shape)
        self.pool = torch.zeros(shape, dtype=torch.float32, device=room.device)
        self.entries = self.layout.allocate(room.blocks, room.device)

    def clear(self, slot: int) -> None:
        """Before a slot's first token. Entries are written before they are read."""
        self.pool[slot].zero_()

    @property
    def bytes_per_slot(self) -> int:
        return 4 * torch.Size(self._shape).numel()


def no_entries(layout: EntryLayout, device: torch.device) -> Tensor:
    """What stands for the entries of a layer that has none; nothing reads it."""
    return layout.allocate(0, device)
