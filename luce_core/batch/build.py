"""From a plan to a packed batch: host arithmetic in persistent buffers, then one copy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.errors import StepFault
from luce_core.plan import StepPlan

if TYPE_CHECKING:
    from luce_core.kv.slot_table import Slot

_NO_DRAFTS: Mapping[int, Sequence[int]] = MappingProxyType({})
_MOST_SHAPES = 64


class BatchBuffers:
    """Persistent index tensors for steps of at most `max_rows` rows in `max_slots` segments.

    A slot has at most `max_blocks` blocks; `null_block` and `null_slot` are one past the last real
    ones. Host and device hold one int32 array each, cut into fields at fixed offsets, so that a
    step needs one copy and a captured graph finds each field where it was. On a CPU both are the
    same memory.
    """

    def __init__(
        self,
        *,
        max_rows: int,
        max_slots: int,
        max_blocks: int,
        null_block: int,
        null_slot: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.max_rows = max_rows
        self.max_slots = max_slots
        self.max_blocks = max_blocks
        self.null_block = null_block
        self.null_slot = null_slot
        self.device = torch.device(device)
        sizes = {
            "token_ids": max_rows,
            "positions": max_rows,
            "kv_rows": max_rows,
            "logit_rows": max_rows,
            "cu_seqlens": max_slots + 1,
            "cu_logits": max_slots + 1,
            "logits_read": max_rows,
            "slot_ids": max_slots,
            "context_lens": max_slots,
            "block_tables": max_slots * max_blocks,
        }
        total = sum(sizes.values())
        on_cpu = self.device.type == "cpu"
        self._host_all = torch.zeros(total, dtype=torch.int32, pin_memory=not on_cpu)
        self._device_all = (
            self._host_all if on_cpu else torch.zeros(total, dtype=torch.int32, device=self.device)
        )
        self.host: dict[str, NDArray[np.int32]] = {}
        self._fields: dict[str, Tensor] = {}
        start = 0
        for name, size in sizes.items():
            self.host[name] = self._host_all[start : start + size].numpy()
            self._fields[name] = self._device_all[start : start + size]
            start += size
        self.host["block_tables"] = self.host["block_tables"].reshape(max_slots, max_blocks)
        self._fields["block_tables"] = self._fields["block_tables"].view(max_slots, max_blocks)
        self._views: dict[tuple[int, int, int], dict[str, Tensor]] = {}
        self._lines: list[list[int]] = [[] for _ in range(max_slots)]
        self.host["block_tables"].fill(null_block)

    def write_table(self, segment: int, blocks: list[int]) -> None:
        """A segment's line of block_tables, null-padded; nothing to do if it says so already."""
        if self._lines[segment] == blocks:
            return
        line = self.host["block_tables"][segment]
        line[: len(blocks)] = blocks
        line[len(blocks) :] = self.null_block
        self._lines[segment] = blocks

    def upload(self, rows: int, segments: int, logits: int) -> Mapping[str, Tensor]:
        """Copy the host fields to the device; the device fields of a step of this size.

        Steps of one size follow each other, and cutting ten tensors costs as much as filling them.
        """
        if self._device_all is not self._host_all:
            self._device_all.copy_(self._host_all)
        size = (rows, segments, logits)
        views = self._views.get(size)
        if views is None:
            if len(self._views) == _MOST_SHAPES:
                self._views.clear()
            views = self._views[size] = self._cut(*size)
        return views

    def _cut(self, rows: int, segments: int, logits: int) -> dict[str, Tensor]:
        lengths = {
            "token_ids": rows,
            "positions": rows,
            "kv_rows": rows,
            "logit_rows": logits,
            "cu_seqlens": segments + 1,
            "cu_logits": segments + 1,
            "logits_read": logits,
            "slot_ids": segments,
            "context_lens": segments,
            "block_tables": segments,
        }
        return {name: self._fields[name][:length] for name, length in lengths.items()}


def pack(
    plan: StepPlan,
    slots: Mapping[int, Slot],
    buffers: BatchBuffers,
    drafts: Mapping[int, Sequence[int]] = _NO_DRAFTS,
    *,
    null_segments: int = 0,
    logits_of: Collection[int] | None = None,
) -> PackedBatch:
    """The batch of one plan; engine thread only, valid until the next call on these buffers.

    A decode row becomes a segment of 1 + len(drafts[slot_id]) rows with logits on all; a prefill
    slice has logits on its last row if it is the prompt's last slice. `null_segments` appends
    one-row decode segments on the null slot and block, to reach the row count of a captured graph.
    `logits_of` names the slots whose logits are read, if of others only the best tokens are.
    StepFault if the step exceeds the buffers or a slot's blocks.
    """
    tokens: list[int] = []
    starts: list[int] = [0]
    slot_ids: list[int] = []
    first_positions: list[int] = []
    logit_rows: list[int] = []
    logit_starts: list[int] = [0]
    for piece in plan.prefill:
        slot_ids.append(piece.slot_id)
        first_positions.append(piece.start)
        tokens.extend(piece.tokens)
        starts.append(len(tokens))
        if piece.is_last:
            logit_rows.append(len(tokens) - 1)
        logit_starts.append(len(logit_rows))
    prefill_rows = len(tokens)
    for row in plan.decode:
        slot_ids.append(row.slot_id)
        first_positions.append(row.position)
        tokens.append(row.token)
        tokens.extend(drafts.get(row.slot_id, ()))
        logit_rows.extend(range(starts[-1], len(tokens)))
        starts.append(len(tokens))
        logit_starts.append(len(logit_rows))
    real_segments = len(slot_ids)
    for _ in range(null_segments):
        slot_ids.append(buffers.null_slot)
        first_positions.append(0)
        logit_rows.append(len(tokens))
        tokens.append(0)
        starts.append(len(tokens))
        logit_starts.append(len(logit_rows))

    rows, segments, logits = len(tokens), len(slot_ids), len(logit_rows)
    if rows > buffers.max_rows or segments > buffers.max_slots:
        raise StepFault(
            f"a step of {rows} rows in {segments} segments does not fit buffers for "
            f"{buffers.max_rows} rows in {buffers.max_slots} segments"
        )
    host = buffers.host
    host["token_ids"][:rows] = tokens
    host["cu_seqlens"][: segments + 1] = starts
    host["slot_ids"][:segments] = slot_ids
    host["context_lens"][:segments] = first_positions
    host["logit_rows"][:logits] = logit_rows
    host["cu_logits"][: segments + 1] = logit_starts
    if logits_of is not None:
        host["logits_read"][:logits] = 0
        for segment in range(real_segments):
            if slot_ids[segment] in logits_of:
                host["logits_read"][logit_starts[segment] : logit_starts[segment + 1]] = 1

    max_query, max_context, block_size = 0, 0, 1
    positions: list[int] = []
    kv_rows: list[int] = []
    for segment in range(real_segments):
        first = first_positions[segment]
        count = starts[segment + 1] - starts[segment]
        length = first + count
        max_query = max(max_query, count)
        max_context = max(max_context, length)
        table = slots[slot_ids[segment]].table
        block_size, blocks = table.block_size, table.blocks
        used = -(-length // block_size)
        if used > len(blocks) or used > buffers.max_blocks:
            raise StepFault(
                f"slot {slot_ids[segment]}: {length} tokens need {used} blocks, it holds "
                f"{len(blocks)} and the buffers take {buffers.max_blocks}"
            )
        buffers.write_table(segment, blocks[:used])
        positions.extend(range(first, length))
        while first < length:  # as many rows as lie in one block
            index, offset = divmod(first, block_size)
            stop = min(length, first - offset + block_size)
            kv_row = blocks[index] * block_size + offset
            kv_rows.extend(range(kv_row, kv_row + stop - first))
            first = stop
    for segment in range(real_segments, segments):
        buffers.write_table(segment, [])
        positions.append(0)
        kv_rows.append(buffers.null_block * block_size)
        max_query, max_context = max(max_query, 1), max(max_context, 1)
    host["positions"][:rows] = positions
    host["kv_rows"][:rows] = kv_rows

    fields = buffers.upload(rows, segments, logits)
    return PackedBatch(
        **(fields if logits_of is not None else {**fields, "logits_read": None}),
        rows=rows,
        segments=segments,
        logits=logits,
        num_prefill=len(plan.prefill),
        prefill_rows=prefill_rows,
        max_query=max_query,
        max_context=max_context,
    )
