"""The routed picks of a step, split by owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Picks:
    """What one owner does for a step: P picks of R rows, all on the host.

    `rows` [R] are the rows of the step that it has picks of, `sources` [P] each pick's place among
    them, `slots` [P] its place in the route [T * top_k], `experts` [P] the owner's numbers.
    """

    rows: Tensor
    sources: Tensor
    slots: Tensor
    experts: Tensor

    @property
    def count(self) -> int:
        return self.slots.shape[0]


class Owner:
    """Splits routes by the experts of a layer that one device owns."""

    def __init__(self, owned: Sequence[int], experts: int, *, grouped: bool) -> None:
        self._numbers = torch.full((experts,), -1)
        self._numbers[torch.tensor(owned, dtype=torch.long)] = torch.arange(len(owned))
        self._grouped = grouped

    def picks(self, route: Tensor) -> Picks:
        """The owner's share of a route [T, 2, top_k] on the host: by expert if `grouped`, else by
        row."""
        numbers = self._numbers[route[:, 0].long()].flatten()
        slots = (numbers >= 0).nonzero().flatten()
        experts = numbers[slots]
        if self._grouped:
            experts, order = experts.sort(stable=True)
            slots = slots[order]
        rows, sources = torch.unique(slots // route.shape[2], return_inverse=True)
        return Picks(rows, sources, slots, experts)
