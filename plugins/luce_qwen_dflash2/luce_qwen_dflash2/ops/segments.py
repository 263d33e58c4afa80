"""The segments of a batch as ops with per-slot state see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from luce_core.batch.packed import PackedBatch


class StateSegment(NamedTuple):
    """Rows first..stop-1 of one slot. Those of a verify segment may be rejected later."""

    slot: int
    first: int
    stop: int
    is_verify: bool


def state_segments(batch: PackedBatch) -> Iterator[StateSegment]:
    """All segments in order. A decode segment of more than one row verifies drafts."""
    starts = batch.cu_seqlens.tolist()
    for number, slot in enumerate(batch.slot_ids.tolist()):
        first, stop = starts[number], starts[number + 1]
        is_verify = number >= batch.num_prefill and stop - first > 1
        yield StateSegment(slot, first, stop, is_verify)
