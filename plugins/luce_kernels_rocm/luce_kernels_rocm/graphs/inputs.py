"""The batch that captured graphs read: fields at fixed places, which a step is copied into."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from luce_core.batch.packed import BATCH_FIELDS, PackedBatch
from luce_core.ops.record import ConstRef, Recording
from luce_core.ops.symbols import RecordingRefused
from luce_kernels_rocm.graphs.shape import GraphShape, Limits, null_lengths


class GraphInputs:
    """One set of fields for all graphs of a recording; each reads the first rows of them.

    What a step is filled up with: rows of the null slot, whose keys lie in the null block and whose
    block table names it alone.
    """

    def __init__(self, recording: Recording, limits: Limits, device: torch.device) -> None:
        null_block, block_size = _null_block(recording)
        slots, rows = recording.max_segments, limits.rows
        segments = min(limits.segments, rows)

        def made(*shape: int, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=torch.int32, device=device)

        shapes = {
            "cu_seqlens": (segments + 1,),
            "cu_logits": (segments + 1,),
            "slot_ids": (segments,),
            "context_lens": (segments,),
            "block_tables": (segments, recording.max_blocks),
        }
        self._fields = {name: made(*shapes.get(name, (rows,))) for name in BATCH_FIELDS}
        # What lies behind a step's own rows and segments, at every place that it can begin at.
        self._padding = {
            "token_ids": made(rows),
            "kv_rows": made(rows, value=null_block * block_size),
            "slot_ids": made(segments, value=slots),
            "context_lens": made(segments),
            "block_tables": made(segments, recording.max_blocks, value=null_block),
        }
        self._counted = torch.arange(rows + 1, dtype=torch.int32, device=device)

    def batch(self, shape: GraphShape) -> PackedBatch:
        """The batch of a graph: the same memory each time."""
        sizes = {
            "cu_seqlens": shape.segments + 1,
            "cu_logits": shape.segments + 1,
            "slot_ids": shape.segments,
            "context_lens": shape.segments,
            "block_tables": shape.segments,
            "logit_rows": shape.logits,
        }
        fields = {
            name: field[: sizes.get(name, shape.rows)] for name, field in self._fields.items()
        }
        return PackedBatch(
            **fields,
            rows=shape.rows,
            segments=shape.segments,
            logits=shape.logits,
            num_prefill=0,
            prefill_rows=0,
            max_query=shape.longest,
            max_context=shape.context,
        )

    def fill(self, batch: PackedBatch, shape: GraphShape) -> None:
        """Copy a step in, and null rows behind it, by one launch."""
        targets: list[Tensor] = []
        sources: list[Tensor] = []

        def put(name: str, start: int, source: Tensor) -> None:
            if source.shape[0]:
                targets.append(self._fields[name][start : start + source.shape[0]])
                sources.append(source)

        for name in BATCH_FIELDS:
            put(name, 0, getattr(batch, name))
        missing = shape.rows - batch.rows
        if missing:
            lengths = null_lengths(missing, batch.max_query)
            for name in ("token_ids", "kv_rows"):
                put(name, batch.rows, self._padding[name][:missing])
            for name in ("slot_ids", "context_lens", "block_tables"):
                put(name, batch.segments, self._padding[name][: len(lengths)])
            start, ends = batch.rows, [batch.rows + end for end in accumulate(lengths)]
            for segment, (length, end) in enumerate(zip(lengths, ends, strict=True), 1):
                put("positions", start, self._counted[:length])
                put("cu_seqlens", batch.segments + segment, self._counted[end : end + 1])
                if shape.logits:
                    logits = self._counted[end : end + 1]
                    put("cu_logits", batch.segments + segment, logits)
                start = end
            if shape.logits:
                put("logit_rows", batch.logits, self._counted[batch.rows : shape.rows])
            else:
                put("cu_logits", batch.segments + 1, self._padding["context_lens"][: len(lengths)])
        torch._foreach_copy_(targets, sources)

    def fill_null(self, shape: GraphShape) -> None:
        """Null rows alone, for the run before a capture: it changes no slot."""
        lengths = _lengths(shape)
        dropped = (shape.rows - shape.logits) // shape.segments
        kept = [length - dropped if shape.logits else 0 for length in lengths]
        ends = [0, *accumulate(lengths)]
        values: dict[str, list[int]] = {
            "positions": [place for length in lengths for place in range(length)],
            "cu_seqlens": ends,
            "cu_logits": [0, *accumulate(kept)],
            "logit_rows": [
                row
                for end, count in zip(ends[1:], kept, strict=True)
                for row in range(end - count, end)
            ],
        }
        for name, padding in self._padding.items():
            self._fields[name].copy_(padding)
        for name, numbers in values.items():
            field = self._fields[name][: len(numbers)]
            field.copy_(torch.tensor(numbers, dtype=torch.int32))


def _lengths(shape: GraphShape) -> list[int]:
    """Rows of each segment of a step of null rows."""
    lengths, left = [], shape.rows
    for segment in range(shape.segments):
        rows = min(shape.longest, left - (shape.segments - segment - 1))
        lengths.append(rows)
        left -= rows
    return lengths


def _null_block(recording: Recording) -> tuple[int, int]:
    """The null block of the paged caches, and the rows of a block; (0, 1) without such caches.

    RecordingRefused if caches differ in it."""
    found = {
        (ref.value.shape[0] - 1, call.op.facts["block_size"])
        for call in recording.calls
        if "block_size" in call.op.facts
        for ref in call.args
        if isinstance(ref, ConstRef)
    }
    if len(found) > 1:
        raise RecordingRefused("the batch", "its caches have different null blocks")
    return found.pop() if found else (0, 1)
