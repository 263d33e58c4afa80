"""Features of tokens that no ring holds yet: they are taken in when a slot wants to draft."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Rows of a slot that wait on average: without drafts the draft costs a pass in so many steps.
BACKLOG_ROWS = 32


class Kept(NamedTuple):
    """Rows of a step that stay in their slot: `rows` of them from row `first_row` of the features
    on, at positions `position`, `position` + 1, ..."""

    slot_id: int
    first_row: int
    position: int
    rows: int


class Run(NamedTuple):
    """Tokens of a slot that follow each other from `position` on: `rows` says which rows of some
    features are theirs."""

    slot_id: int
    position: int
    rows: Sequence[int]


class Backlog:
    """Steps as they came, rows that did not stay included: one copy for each step, whoever is in
    it. `rows` [(slots + 1) x BACKLOG_ROWS, F] fills from the front."""

    def __init__(self, slots: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.zeros((slots + 1) * BACKLOG_ROWS, width, dtype=dtype, device=device)
        self._used = 0
        self._steps: list[tuple[int, Sequence[Kept]]] = []

    def has_room(self, rows: int) -> bool:
        return self._used + rows <= self.rows.shape[0]

    def add(self, features: Tensor, kept: Sequence[Kept]) -> None:
        """Append a step's `features` [T, F], of which the rows of `kept` count; there is room."""
        start, rows = self._used, features.shape[0]
        assert self.has_room(rows), (start, rows)
        self.rows[start : start + rows] = features
        self._used = start + rows
        self._steps.append((start, kept))

    def forget(self, slot_id: int) -> None:
        """What waits of a slot counts no more."""
        self._steps = [
            (start, [each for each in kept if each.slot_id != slot_id])
            for start, kept in self._steps
        ]

    def runs(self) -> list[Run]:
        """All that waits, one run of `self.rows` for each slot."""
        found: dict[int, tuple[int, list[int]]] = {}
        for start, kept in self._steps:
            for slot_id, first_row, position, count in kept:
                rows = found.setdefault(slot_id, (position, []))[1]
                rows.extend(range(start + first_row, start + first_row + count))
        return [Run(slot_id, position, rows) for slot_id, (position, rows) in found.items()]

    def clear(self) -> None:
        """Nothing waits any more."""
        self._used = 0
        self._steps.clear()


def runs_of(kept: Iterable[Kept]) -> list[Run]:
    """The rows of one step."""
    return [Run(k.slot_id, k.position, range(k.first_row, k.first_row + k.rows)) for k in kept]


def backlog_bytes(width: int, dtype: torch.dtype) -> int:
    """Bytes of one slot."""
    return BACKLOG_ROWS * width * dtype.itemsize
