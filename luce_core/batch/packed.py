"""The packed ragged batch: what every kernel of a step reads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """One step as a token axis of T rows cut into S segments, one segment per slot.

    Prefill segments come first, decode and verify segments after; slots ascend in each group. All
    tensors are int32 on the engine's device: torch indexes with int32 and kernels want it.
    They are views of persistent buffers, so a batch is valid until the next `pack` on these.

    A row attends to the keys of its segment's slot at positions <= its own. `block_tables` is
    padded with the null block, one past the last real one. The plain ints live on the host, for
    choosing a kernel without waiting for the device.
    """

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]      absolute
    cu_seqlens: Tensor  # [S + 1]  where each segment starts
    slot_ids: Tensor  # [S]
    context_lens: Tensor  # [S]      tokens in the cache before this step
    block_tables: Tensor  # [S, B]   physical blocks, null-padded
    kv_rows: Tensor  # [T]      physical row to write: block * block_size + offset
    logit_rows: Tensor  # [L]      rows that reach the LM head
    cu_logits: Tensor  # [S + 1]  whose they are

    # [L]  0: of this row only the best token is read, and its logits may be left out; None: all are
    # read. No op gets it; a provider that replays a step may go by it.
    logits_read: Tensor | None = None

    rows: int  # T
    segments: int  # S
    logits: int  # L
    num_prefill: int  # segments that prefill; these are the first ones
    prefill_rows: int  # rows of those segments; these are the first ones
    max_query: int  # rows of the longest segment
    max_context: int  # keys that the row with the longest past attends to, itself included


BATCH_FIELDS = (
    "token_ids",
    "positions",
    "cu_seqlens",
    "slot_ids",
    "context_lens",
    "block_tables",
    "kv_rows",
    "logit_rows",
    "cu_logits",
)
