"""Packed batches for cases."""

from __future__ import annotations

import torch

from luce_core.batch.packed import BATCH_FIELDS, PackedBatch


def step(num_prefill: int) -> PackedBatch:
    """A segment of six rows; all that kernels with a batch ask of it."""
    small = torch.zeros(6, dtype=torch.int32)
    fields = {name: small for name in BATCH_FIELDS if name != "block_tables"}
    return PackedBatch(
        **fields,
        block_tables=small[None],
        rows=6,
        segments=1,
        logits=6,
        num_prefill=num_prefill,
        prefill_rows=6 * num_prefill,
        max_query=6,
        max_context=1024,
    )
