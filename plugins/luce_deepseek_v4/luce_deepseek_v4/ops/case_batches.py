"""Batches and caches of parity cases, over blocks of 128 tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, PagedCase, Segment
from luce_core.ops.kv_layout import KvLayout, encode_rows
from luce_deepseek_v4.ops.entry_cache import BLOCK_TOKENS, EntryLayout

# What these ops cache are entries, not keys; the batch's tables are what counts of it.
CASE_LAYOUT = KvLayout(kv_heads=1, head_dim=32, block_size=BLOCK_TOKENS)

MIXED = (
    Segment(0, 9, True),
    Segment(5, 2, True),
    Segment(126, 16, True),
    Segment(3, 1, True),
    Segment(0, 1),
    Segment(7, 1),
    Segment(127, 1),
    Segment(128, 1),
    Segment(391, 1),
)
"""Prompts begun and continued over the border of a block, and decode rows."""


def one_by_one(case: PagedCase, number: int) -> Iterator[tuple[slice, PackedBatch]]:
    """The rows of a segment as steps of one row each."""
    start = case.rows_of(number).start
    for row in range(case.segments[number].rows):
        yield slice(start + row, start + row + 1), case.one_row(number, row)


def some_rows(case: PagedCase, number: int) -> Iterator[tuple[slice, PackedBatch]]:
    """The first, the middle and the last row of a segment, each as a step of its own."""
    count = case.segments[number].rows
    rows = list(one_by_one(case, number))
    return (rows[row] for row in dict.fromkeys((0, count // 2, count - 1)))


def filled_entries(
    case: PagedCase,
    layout: EntryLayout,
    device: torch.device,
    make: Callable[[int], Tensor],
) -> Tensor:
    """A cache that holds `make(count)` [count, D] float32 for the entries that a segment has by its
    end; all else is NaN."""
    cache = layout.allocate(case.total_blocks, device)
    cache.view(torch.uint8).fill_(0xFF)
    tables = case.batch.block_tables.tolist()
    for segment, table in zip(case.segments, tables, strict=False):
        count = (segment.context + segment.rows) // layout.ratio
        stored = encode_rows(make(count), layout.cache_type).to(device)
        for entry in range(count):
            block, place = divmod(entry, layout.entries_per_block)
            cache[table[block], place] = stored[entry]
    return cache


def filled_ring(
    maker: CaseMaker, case: PagedCase, ring: int, dim: int, dtype: torch.dtype
) -> Tensor:
    """Rings [slots + 1, ring, dim] that hold each segment's last rows, its new ones included; all
    else, the null slot too, is NaN."""
    made = torch.full((len(case.segments) + 1, ring, dim), float("nan"), dtype=dtype)
    for slot, segment in enumerate(case.segments):
        stop = segment.context + segment.rows
        for position in range(max(0, stop - ring), stop):
            made[slot, position % ring] = maker.normal32(dim)
    return made.to(maker.device)
