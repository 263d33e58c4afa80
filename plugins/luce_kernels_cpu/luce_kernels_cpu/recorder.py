"""Compiles a recorded forward pass into a tape, and runs it: one call into the library a step.

Where the host does something itself in the middle of a step there is a tape before that and one
after it, over the same memory.
"""

from __future__ import annotations

import ctypes as c
from itertools import groupby
from typing import Any

import torch

from luce_core.batch.packed import PackedBatch
from luce_core.ops.program import Rates, Work
from luce_core.ops.record import BufferRef, Recording
from luce_kernels_cpu import structs
from luce_kernels_cpu.batch_view import fill_batch
from luce_kernels_cpu.fuse import ALL_PASSES, Fusion, fuse
from luce_kernels_cpu.graph import Graph, Record, View, build_graph
from luce_kernels_cpu.memory import Memory
from luce_kernels_cpu.parts import HostPart, Rows, TapePart
from luce_kernels_cpu.provider import Provider, provider
from luce_kernels_cpu.schedule import schedule
from luce_kernels_cpu.structs import Op
from luce_kernels_cpu.views import ALIGN, aligned, partials_bytes
from luce_kernels_cpu.work import work_of

_MOST_CUTS = 64


def compile_recording(recording: Recording, fusion: Fusion = ALL_PASSES) -> NativeProgram:
    """RecordingRefused names an op that the library cannot replay. Called at load, after the
    caches exist; the program keeps them alive."""
    graph = build_graph(recording)
    fuse(graph, fusion)
    kind = PartedProgram if any(record.host for record in graph.records) else NativeProgram
    return kind(provider(), graph, recording, overlap=fusion.overlap)


class NativeProgram:
    """A tape with its memory. Called with a batch on one thread at a time; what it returns is
    valid until the next call."""

    def __init__(
        self, owner: Provider, graph: Graph, recording: Recording, *, overlap: bool
    ) -> None:
        self._owner = owner
        # It keeps the GIL: to get it back may take longer than the call.
        self._rouse = c.PYFUNCTYPE(None, c.c_void_p)(("lk_pool_rouse", owner.library))
        self._graph = graph  # keeps weights and caches alive, whose addresses the tape holds
        self.names = tuple(record.name for record in graph.records)
        plan = schedule(graph, overlap=overlap)
        self.barriers = sum(plan.barriers)
        partials = _shared(graph, recording)
        self._arena = torch.empty(plan.nbytes + partials + ALIGN, dtype=torch.uint8)
        base = -(-self._arena.data_ptr() // ALIGN) * ALIGN
        self._counters = {
            record: torch.zeros(aligned(record.counter_bytes) // 8, dtype=torch.int64)
            for record in graph.records
            if record.counter_bytes
        }
        memory = Memory(
            base,
            plan.offsets,
            base + plan.nbytes,
            partials,
            recording.max_logits,
            {record: counter.data_ptr() for record, counter in self._counters.items()},
        )
        self._starts = {
            value: base - self._arena.data_ptr() + offset for value, offset in plan.offsets.items()
        }
        self._parts = self._make_parts(recording, memory, plan.barriers)
        self._outputs = tuple(
            self._rows(view, tail, dtype)
            for view, tail, dtype in zip(
                graph.outputs, graph.output_tails, graph.output_dtypes, strict=True
            )
        )
        self._cuts: dict[tuple[int, int], Any] = {}
        self._batch = structs.Batch()
        self._batch_address = c.byref(self._batch)

    def __call__(self, batch: PackedBatch) -> Any:
        """What `forward` returned: [L, V] logits of the batch. StepFault if the batch refers to
        what is not there."""
        fill_batch(self._batch, batch)
        for part in self._parts:
            part.run(batch, self._batch_address, None)
        return self._results(batch)

    def expect(self) -> None:
        """A call follows in a moment: wake the workers, which takes as long as packing a batch."""
        self._rouse(self._owner.pool)

    def profile(self, batch: PackedBatch) -> dict[str, float]:
        """Run the batch for the clock alone: seconds by op, barriers included. Repeats what the
        call that counts does to the caches, and undoes what a second time would not repeat."""
        spent = (c.c_int64 * len(self.names))()
        fill_batch(self._batch, batch)
        moved = [cache for record in self._graph.records for cache in record.moved_caches]
        slots = batch.slot_ids.long()
        before = [cache[slots] for cache in moved]
        at = 0
        for part in self._parts:
            part.run(batch, self._batch_address, c.byref(spent, at * c.sizeof(c.c_int64)))
            at += part.count
        for cache, values in zip(moved, before, strict=True):
            cache[slots] = values
        seconds: dict[str, float] = {}
        for name, ns in zip(self.names, spent, strict=True):
            seconds[name] = seconds.get(name, 0.0) + ns / 1e9
        return seconds

    def work(self, batch: PackedBatch) -> dict[str, tuple[Work, ...]]:
        """What the records must do for the batch, by op."""
        found: dict[str, tuple[Work, ...]] = {}
        for name, record in zip(self.names, self._graph.records, strict=True):
            found[name] = (*found.get(name, ()), work_of(record, batch))
        return found

    def rates(self, nbytes: int) -> Rates:
        """What this machine does at best on the pool's workers."""
        return self._owner.rates(nbytes)

    def _results(self, batch: PackedBatch) -> Any:
        """Outputs cut to the batch: kept, since to cut a tensor costs more than to find it."""
        size = (batch.rows, batch.logits)
        results = self._cuts.get(size)
        if results is None:
            if len(self._cuts) == _MOST_CUTS:
                self._cuts.clear()
            cut = tuple(rows.of(batch) for rows in self._outputs)
            results = self._cuts[size] = cut if self._graph.returns_tuple else cut[0]
        return results

    def _make_parts(
        self, recording: Recording, memory: Memory, barriers: tuple[bool, ...]
    ) -> list[TapePart | HostPart]:
        limits = structs.Limits(recording.max_rows, recording.max_logits, recording.max_segments)
        parts: list[TapePart | HostPart] = []
        records = zip(self._graph.records, barriers, strict=True)
        for by_host, group in groupby(records, lambda each: each[0].host is not None):
            if by_host:
                parts += [self._host_part(record) for record, _ in group]
            else:
                parts.append(TapePart(self._owner, limits, list(group), memory))
        return parts

    def _host_part(self, record: Record) -> HostPart:
        call = record.host
        assert call is not None
        assert call.out is not None
        refs = [ref for ref in call.args if isinstance(ref, BufferRef)]
        views = zip(record.views.values(), refs, strict=True)
        args = tuple(self._rows(view, ref.tail, ref.dtype) for view, ref in views)
        return HostPart(call.op, args, self._rows(record.out, call.out.tail, call.out.dtype))

    def _rows(self, view: View, tail: tuple[int, ...], dtype: torch.dtype) -> Rows:
        """All rows of a value or of a part of it."""
        value = view.value
        start = self._starts[value]
        rows = self._arena[start : start + value.nbytes].view(dtype)
        strides = [1]
        for size in reversed(tail[1:]):
            strides.insert(0, strides[0] * size)
        shape = (value.max_rows, *tail)
        place = rows.storage_offset() + view.offset
        memory = rows.as_strided(shape, (value.stride, *strides[: len(tail)]), place)
        return Rows(memory, value.domain)


class PartedProgram(NativeProgram):
    """A step with work of the host in its middle."""

    @property
    def description(self) -> str:
        names = {record.name for record in self._graph.records if record.host is not None}
        tapes = sum(isinstance(part, TapePart) for part in self._parts)
        return f"in {tapes} parts, with {', '.join(sorted(names))} between them"


def _shared(graph: Graph, recording: Recording) -> int:
    """Bytes that workers share within a record: in attention to share one sequence of decode
    rows."""
    native = [
        record.native.shared_bytes(record.constants, recording.max_logits)
        for record in graph.records
        if record.native is not None
    ]
    return max(
        *native,
        *(
            partials_bytes(
                rows=recording.max_logits,
                keys=record.caches[0].shape[0] * record.caches[0].shape[1],
                heads=record.constants["heads"],
                dim=record.constants["head_dim"],
            )
            for record in graph.records
            if record.op is Op.ATTENTION
        ),
        0,
        0,
    )
