"""Parity inputs of ops with per-slot state, and of their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from luce_core.ops.cases import CaseMaker, Inputs, Part, Segment
from luce_core.ops.kv_layout import KvLayout

# These ops read no KV cache; a batch has block tables all the same.
_LAYOUT = KvLayout(kv_heads=1, head_dim=32, block_size=16)

MOST_DRAFTS = 7

MIXED = (
    Segment(0, 9, True),
    Segment(5, 2, True),
    Segment(3, 1, True),
    Segment(7, 1),
    Segment(0, 1),
    Segment(4, 3),
    Segment(40, 1 + MOST_DRAFTS),
    Segment(2, 2),
)
"""Prompts begun and continued, decode rows, and verify segments up to the longest."""


class StateCase:
    """A batch over slots 0.. with caches for them; segment i belongs to slot i.

    The null slot holds NaN unless the batch pads with it, and logs hold NaN throughout: whoever
    reads what was not written shows it.
    """

    def __init__(
        self, maker: CaseMaker, segments: Sequence[Segment], *, null_segments: int = 0
    ) -> None:
        self._maker = maker
        self._paged = maker.batch(segments, _LAYOUT, null_segments=null_segments)
        self._padded = null_segments > 0
        self.segments = tuple(segments)
        self.batch = self._paged.batch
        self.rows = self.batch.rows

    def state(self, *shape: int, std: float = 1.0) -> Tensor:
        """A cache [slots + 1, *shape] float32 with values."""
        made = self._maker.normal32(len(self.segments) + 1, *shape, std=std)
        if not self._padded:
            made[-1] = float("nan")
        return made.to(self._maker.device)

    def log(self, *shape: int) -> Tensor:
        """A cache [slots + 1, 1 + MOST_DRAFTS, *shape] float32 of NaN."""
        shape = (len(self.segments) + 1, 1 + MOST_DRAFTS, *shape)
        return torch.full(shape, float("nan"), device=self._maker.device)

    def inputs(
        self, rows: tuple[Tensor, ...], caches: tuple[Tensor, ...], weights: tuple[Any, ...]
    ) -> Inputs:
        """Inputs of an op that takes `rows` [T, ...], the batch and caches, all of them written."""

        def observe(args: tuple[Any, ...]) -> Tensor:
            return torch.cat([cache.flatten(1) for cache in args[len(rows) + 1 :]], 1)

        alone, split = [], []
        for number, segment in enumerate(self.segments):
            batch, where = self._paged.alone(number)
            slot = slice(number, number + 1)
            part = (*(x[where] for x in rows), batch, *_copies(caches))
            alone.append(Part(part, where, seen=slot))
            if segment.rows > 1:
                cut = self._cut_prompt if segment.prefill else self._one_by_one
                split += cut(number, rows, caches)
        args = (*rows, self.batch, *_copies(caches))
        return Inputs(args, weights, observe, tuple(alone), tuple(split))

    def replay_inputs(self, accepted: Tensor, caches: tuple[Tensor, ...]) -> Inputs:
        """Inputs of an op that takes the batch, how many rows became durable, and caches."""
        alone = tuple(
            Part(
                (self._paged.alone(number)[0], accepted, *_copies(caches)),
                rows=slice(0),
                seen=slice(number, number + 1),
            )
            for number in range(len(self.segments))
        )
        return Inputs(
            (self.batch, accepted, *_copies(caches)),
            observe=lambda args: args[-1].flatten(1).clone(),
            alone=alone,
        )

    def _cut_prompt(
        self, number: int, rows: tuple[Tensor, ...], caches: tuple[Tensor, ...]
    ) -> list[Part]:
        """The prompt's second slice, after its first."""
        where, count = self._paged.rows_of(number), self.segments[number].rows
        parts = []
        for cut in dict.fromkeys((1, count // 2, count - 1)):
            first = slice(where.start, where.start + cut)
            second = slice(first.stop, where.stop)
            own = _copies(caches)
            before = (*(x[first] for x in rows), self._paged.piece(number, 0, cut), *own)
            rest = self._paged.piece(number, cut, count - cut)
            args = (*(x[second] for x in rows), rest, *own)
            parts.append(Part(args, second, (before,), slice(number, number + 1)))
        return parts

    def _one_by_one(
        self, number: int, rows: tuple[Tensor, ...], caches: tuple[Tensor, ...]
    ) -> list[Part]:
        """The last verify row as the plain decode row that it would be without speculation."""
        where, own = self._paged.rows_of(number), _copies(caches)
        calls = [
            (
                *(x[row : row + 1] for x in rows),
                self._paged.one_row(number, row - where.start),
                *own,
            )
            for row in range(where.start, where.stop)
        ]
        return [Part(calls[-1], slice(where.stop - 1, where.stop), tuple(calls[:-1]))]


def _copies(caches: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(cache.clone() for cache in caches)
