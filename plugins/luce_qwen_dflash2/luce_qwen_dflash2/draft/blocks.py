"""Packed batches of the draft: its blocks of proposals, and the rows whose features it takes in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from luce_core.batch.build import BatchBuffers
from luce_core.batch.packed import PackedBatch


class Piece(NamedTuple):
    """Rows of one slot at position, position + 1, ..."""

    slot_id: int
    position: int
    tokens: Sequence[int]


def draft_buffers(max_rows: int, slots: int, device: torch.device) -> BatchBuffers:
    """Buffers for `pack_pieces`. The draft has rings instead of KV blocks: one null block."""
    return BatchBuffers(
        max_rows=max_rows, max_slots=slots, max_blocks=1, null_block=0, null_slot=slots,
        device=device,
    )  # fmt: skip


def pack_pieces(
    pieces: Sequence[Piece], buffers: BatchBuffers, *, with_logits: bool
) -> PackedBatch:
    """One segment for each piece; with logits on every row but its first, or on none. Valid until
    the next call on these buffers."""
    counts = [len(piece.tokens) for piece in pieces]
    starts = [0, *accumulate(counts)]
    per_piece = [count - 1 if with_logits else 0 for count in counts]
    logit_starts = [0, *accumulate(per_piece)]
    rows, segments, logits = starts[-1], len(pieces), logit_starts[-1]
    assert rows <= buffers.max_rows, (rows, buffers.max_rows)
    assert segments <= buffers.max_slots, (segments, buffers.max_slots)
    host = buffers.host
    host["token_ids"][:rows] = [token for piece in pieces for token in piece.tokens]
    host["positions"][:rows] = [
        piece.position + i for piece in pieces for i in range(len(piece.tokens))
    ]
    host["kv_rows"][:rows] = 0
    host["cu_seqlens"][: segments + 1] = starts
    host["slot_ids"][:segments] = [piece.slot_id for piece in pieces]
    host["context_lens"][:segments] = [piece.position for piece in pieces]
    host["block_tables"][:segments] = buffers.null_block
    host["cu_logits"][: segments + 1] = logit_starts
    host["logit_rows"][:logits] = [
        first + 1 + i for first, count in zip(starts, per_piece, strict=False) for i in range(count)
    ]
    return PackedBatch(
        **buffers.upload(rows, segments, logits),
        rows=rows,
        segments=segments,
        logits=logits,
        num_prefill=0,
        prefill_rows=0,
        max_query=max(counts),
        max_context=max(
            piece.position + count for piece, count in zip(pieces, counts, strict=True)
        ),
    )
