"""The rows of a batch one by one, for references that go through them in token order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from luce_core.batch.packed import PackedBatch


class SegmentRow(NamedTuple):
    """Row `row` of the step is the token at `position` of `slot`, in segment `segment`."""

    row: int
    segment: int
    slot: int
    position: int


def segment_rows(batch: PackedBatch) -> Iterator[SegmentRow]:
    """All rows in order; those of a segment stand at ascending positions."""
    starts, positions = batch.cu_seqlens.tolist(), batch.positions.tolist()
    for segment, slot in enumerate(batch.slot_ids.tolist()):
        for row in range(starts[segment], starts[segment + 1]):
            yield SegmentRow(row, segment, slot, positions[row])
