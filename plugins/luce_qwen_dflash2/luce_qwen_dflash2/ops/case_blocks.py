"""Packed batches of draft blocks, for the cases of the draft's ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch


def block_rows(widths: Sequence[int]) -> Iterator[slice]:
    """The rows of each block."""
    stops = list(accumulate(widths))
    return (slice(stop - width, stop) for stop, width in zip(stops, widths, strict=True))


def block_batch(
    blocks: Sequence[tuple[int, int]],
    device: torch.device,
    *,
    slots: Sequence[int] | None = None,
    token_ids: Sequence[int] | None = None,
) -> PackedBatch:
    """Blocks (context, rows) of the given slots, by default 0, 1, ...; logits on all rows but the
    first of each."""
    starts = [0, *accumulate(rows for _, rows in blocks)]
    logit_starts = [0, *accumulate(rows - 1 for _, rows in blocks)]
    rows = starts[-1]
    logit_rows = [row for first, stop in pairwise(starts) for row in range(first + 1, stop)]

    def tensor(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return PackedBatch(
        token_ids=tensor(token_ids or [0] * rows),
        positions=tensor([context + i for context, count in blocks for i in range(count)]),
        cu_seqlens=tensor(starts),
        slot_ids=tensor(slots if slots is not None else range(len(blocks))),
        context_lens=tensor([context for context, _ in blocks]),
        block_tables=tensor([0] * len(blocks)).view(-1, 1),
        kv_rows=tensor([0] * rows),
        logit_rows=tensor(logit_rows),
        cu_logits=tensor(logit_starts),
        rows=rows,
        segments=len(blocks),
        logits=len(logit_rows),
        num_prefill=0,
        prefill_rows=0,
        max_query=max(count for _, count in blocks),
        max_context=max(context + count for context, count in blocks),
    )
