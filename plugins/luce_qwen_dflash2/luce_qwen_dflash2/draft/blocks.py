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


class PieceBatches:
    """Batches in buffers of their own, with logits on every row of a piece but its first, or on
    none. The draft has rings instead of KV blocks: `kv_rows` and `block_tables` name one null
    block for ever."""

    def __init__(
        self, *, max_rows: int, slots: int, with_logits: bool, device: torch.device
    ) -> None:
        self.max_rows = max_rows
        self._with_logits = with_logits
        self._buffers = BatchBuffers(
            max_rows=max_rows, max_slots=slots, max_blocks=1, null_block=0, null_slot=slots,
            device=device,
        )  # fmt: skip
        self._counts: list[int] = []
        self._logits = 0

    def pack(self, pieces: Sequence[Piece]) -> PackedBatch:
        """One segment for each piece. Valid until the next call."""
        counts = [len(piece.tokens) for piece in pieces]
        rows, segments = sum(counts), len(pieces)
        buffers, host = self._buffers, self._buffers.host
        assert rows <= buffers.max_rows, (rows, buffers.max_rows)
        assert segments <= buffers.max_slots, (segments, buffers.max_slots)
        if counts != self._counts:
            self._set_counts(counts)
        tokens: list[int] = []
        positions: list[int] = []
        for piece, count in zip(pieces, counts, strict=True):
            tokens += piece.tokens
            positions += range(piece.position, piece.position + count)
        firsts = [piece.position for piece in pieces]
        host["token_ids"][:rows] = tokens
        host["positions"][:rows] = positions
        host["slot_ids"][:segments] = [piece.slot_id for piece in pieces]
        host["context_lens"][:segments] = firsts
        return PackedBatch(
            **buffers.upload(rows, segments, self._logits),
            rows=rows,
            segments=segments,
            logits=self._logits,
            num_prefill=0,
            prefill_rows=0,
            max_query=max(counts),
            max_context=1 + max(positions),
        )

    def _set_counts(self, counts: list[int]) -> None:
        """What follows from the lengths of the pieces alone, which often are those of before."""
        host, segments = self._buffers.host, len(counts)
        starts = [0, *accumulate(counts)]
        per_piece = [count - 1 if self._with_logits else 0 for count in counts]
        logit_starts = [0, *accumulate(per_piece)]
        self._counts, self._logits = counts, logit_starts[-1]
        host["cu_seqlens"][: segments + 1] = starts
        host["cu_logits"][: segments + 1] = logit_starts
        host["logit_rows"][: self._logits] = [
            row
            for start, count in zip(starts, per_piece, strict=False)
            for row in range(start + 1, start + 1 + count)
        ]
