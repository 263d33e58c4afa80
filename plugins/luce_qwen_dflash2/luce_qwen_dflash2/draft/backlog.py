"""Features of tokens that no ring holds yet: they are taken in when a slot wants to draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from luce_core.plan import DecodeRow
from luce_qwen_dflash2.host_filled import HostFilled

# Rows of a slot that wait on average: without drafts the draft costs a pass in so many steps. Small
# models have room for two windows: most requests that do not draft then end before it.
BACKLOG_ROWS = 32
_SMALL_BYTES = 64 << 20


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
    """Steps as they came, rows that did not stay included. `rows` [capacity, F] fills from the
    front: the target's pass itself puts the rows of a step at `places`."""

    def __init__(
        self, capacity: int, width: int, *, max_rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._capacity = capacity
        self.rows = torch.zeros(capacity, width, dtype=dtype, device=device)
        self.places = HostFilled(max_rows, device)
        self._used = self._coming = 0
        self._done: dict[int, int] = {}  # steps that wait for a slot no more
        # Where the rows of each step begin, and which of them count.
        self._steps: list[tuple[int, Sequence[Kept], Sequence[DecodeRow]]] = []

    def has_room(self, rows: int) -> bool:
        return self._used + rows <= self._capacity

    def open(self, rows: int) -> None:
        """Before a step of so many rows, for which there is room: they go behind those that wait.
        If the step fails, the next one takes their place."""
        assert self.has_room(rows), (self._used, rows)
        self._coming = rows
        self.places.fill(list(range(self._used, self._used + rows)))

    def keep(self, kept: Sequence[Kept]) -> None:
        """After the step: the rows of `kept` count."""
        self._steps.append((self._used, kept, ()))
        self._used += self._coming
        self._coming = 0

    def keep_all(self, rows: Sequence[DecodeRow]) -> None:
        """After a step of nothing but these rows: all of them count."""
        self._steps.append((self._used, (), rows))
        self._used += self._coming
        self._coming = 0

    def forget(self, slot_id: int) -> None:
        """What waits of a slot counts no more."""
        self._done[slot_id] = len(self._steps)

    def runs(self, slot_ids: Sequence[int]) -> list[Run]:
        """All that waits of these slots, one run of `self.rows` for each."""
        found: dict[int, tuple[int, list[int]]] = {}
        done = {slot_id: self._done.get(slot_id, 0) for slot_id in slot_ids}
        for number in range(min(done.values(), default=0), len(self._steps)):
            start, kept, rows = self._steps[number]
            for slot_id, first, position, count in kept:
                if number >= done.get(slot_id, self._used):
                    places = found.setdefault(slot_id, (position, []))[1]
                    places.extend(range(start + first, start + first + count))
            for place, (slot_id, _, position, _) in enumerate(rows, start):
                if number >= done.get(slot_id, self._used):
                    found.setdefault(slot_id, (position, []))[1].append(place)
        return [Run(slot_id, position, places) for slot_id, (position, places) in found.items()]

    def clear(self) -> None:
        """Nothing waits any more."""
        self._used = 0
        self._steps.clear()
        self._done.clear()


def backlog_rows(slots: int, *, max_rows: int, longest: int, row_bytes: int) -> int:
    """Rows that it holds: those of the widest step at least. `longest` is that of the rings."""
    return max(max_rows, slots * BACKLOG_ROWS, min(2 * slots * longest, _SMALL_BYTES // row_bytes))
