"""Features of tokens that a slot's rings do not hold yet: taken in when the slot wants to draft."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

# Rows of a slot: a slot that does not draft costs a pass of the draft once in so many tokens.
BACKLOG_ROWS = 32


class Backlog:
    """Up to BACKLOG_ROWS feature rows of each slot, in order, in `rows` [(slots + 1) x
    BACKLOG_ROWS, F]: those of slot s from s x BACKLOG_ROWS on; the null slot's are never used."""

    def __init__(self, slots: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.zeros((slots + 1) * BACKLOG_ROWS, width, dtype=dtype, device=device)
        self._counts = [0] * slots

    def count(self, slot_id: int) -> int:
        """Rows that wait."""
        return self._counts[slot_id]

    def first_row(self, slot_id: int) -> int:
        return slot_id * BACKLOG_ROWS

    def has_room(self, slot_id: int, rows: int) -> bool:
        return self._counts[slot_id] + rows <= BACKLOG_ROWS

    def add(self, features: Tensor, parts: Iterable[tuple[int, int, int]]) -> None:
        """Append for each (slot id, first row, rows) these rows of `features`; there is room."""
        sources: list[int] = []
        targets: list[int] = []
        for slot_id, first_row, rows in parts:
            start = self.first_row(slot_id) + self._counts[slot_id]
            assert self.has_room(slot_id, rows), (slot_id, rows)
            sources.extend(range(first_row, first_row + rows))
            targets.extend(range(start, start + rows))
            self._counts[slot_id] += rows
        if sources:
            index = torch.tensor([sources, targets], device=self.rows.device)
            self.rows.index_copy_(0, index[1], features.index_select(0, index[0]))

    def clear(self, slot_id: int) -> None:
        self._counts[slot_id] = 0


def backlog_bytes(width: int, dtype: torch.dtype) -> int:
    """Bytes of one slot."""
    return BACKLOG_ROWS * width * dtype.itemsize
