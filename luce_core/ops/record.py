"""Recording a forward pass, so that a step need not pay Python for each op.

Model code is functional over bound ops: `forward(batch)` gets the batch, passes fields of it and
outputs of ops to ops, views outputs per head (`q.view(-1, heads, dim)`, `qkv.split(...)`), and does
nothing else. `record` runs it once on stand-ins. The result is a list of calls whose arguments are
buffer views, batch fields, the batch, or constants (caches); what differs from step to step (row
counts, tables, positions) is read from the batch when it is replayed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from luce_core.batch.packed import BATCH_FIELDS, PackedBatch
from luce_core.errors import StepFault
from luce_core.ops.spec import ArgKind, ArgSpec, Rows
from luce_core.ops.symbols import BatchHeader, Buffer, Field, RecordingRefused, Root

if TYPE_CHECKING:
    from luce_core.ops.bound import BoundOp

__all__ = [
    "BatchRef",
    "BufferRef",
    "Call",
    "ConstRef",
    "FieldRef",
    "Recorder",
    "Recording",
    "RecordingRefused",
    "Ref",
    "ReferenceProgram",
    "ReferenceRecorder",
    "record",
]


@dataclass(frozen=True, slots=True)
class BufferRef:
    """A view of the rows in arena place `place`: element (r, i...) lies at
    offset + r * strides[0] + sum(i * strides[1:]), counted in elements of `dtype`.
    """

    place: int
    rows: Rows
    dtype: torch.dtype
    tail: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class FieldRef:
    """A tensor of the batch."""

    name: str


@dataclass(frozen=True, slots=True)
class BatchRef:
    """The whole batch."""


@dataclass(frozen=True, slots=True, eq=False)
class ConstRef:
    """The same object in every step: a cache."""

    value: Any


Ref = BufferRef | FieldRef | BatchRef | ConstRef


@dataclass(frozen=True, slots=True)
class Call:
    """One op call. Constants and prepared weights are on `op`; `out` is None if it has none."""

    op: BoundOp
    args: tuple[Ref, ...]
    out: BufferRef | None


@dataclass(frozen=True, slots=True)
class Recording:
    """A forward pass as data.

    `arena` holds the bytes of each place; places are reused, so a provider may give them any
    memory but must keep the order of dependent calls. `outputs` are what `forward` returned.
    """

    calls: tuple[Call, ...]
    arena: tuple[int, ...]
    outputs: tuple[BufferRef, ...]
    returns_tuple: bool
    max_rows: int
    max_logits: int
    max_segments: int
    max_blocks: int


class Recorder:
    """Collects calls while `forward` runs; one per recording."""

    def __init__(
        self, *, max_rows: int, max_logits: int, max_segments: int, max_blocks: int
    ) -> None:
        self._most = {
            Rows.TOKENS: max_rows,
            Rows.LOGITS: max_logits,
            Rows.SEGMENTS: max_segments,
        }
        self._max_blocks = max_blocks
        self._calls: list[Call] = []
        self._arena: list[int] = []
        self._free: list[int] = []
        shapes: dict[str, tuple[int, ...]] = {
            "cu_seqlens": (max_segments + 1,),
            "slot_ids": (max_segments,),
            "context_lens": (max_segments,),
            "block_tables": (max_segments, max_blocks),
            "logit_rows": (max_logits,),
            "cu_logits": (max_segments + 1,),
        }
        fields = {name: shapes.get(name, (max_rows,)) for name in BATCH_FIELDS}
        self.header = BatchHeader(self, fields)

    def add(self, op: BoundOp, args: tuple[Any, ...]) -> Buffer | None:
        """Record one call; a stand-in for its output. Called by BoundOp."""
        name = op.spec.name
        if not op.kernel.recordable:
            raise RecordingRefused(name, f"the kernel of {op.kernel.provider} cannot be replayed")
        expected = op.spec.step_args
        if len(args) != len(expected):
            raise RecordingRefused(name, f"takes {len(expected)} arguments, got {len(args)}")
        refs = tuple(self._ref(name, arg, spec) for arg, spec in zip(args, expected, strict=True))
        if op.spec.out is None:
            self._calls.append(Call(op, refs, None))
            return None
        rows = op.spec.out.rows
        if rows is Rows.ANY:
            rows = next(ref.rows for ref in refs if isinstance(ref, BufferRef))
        shape = op.out_shape(args)
        if rows not in self._most or shape[0] != self._most[rows]:
            raise RecordingRefused(name, f"its output {shape} has no row axis of the batch")
        out = self._take(shape, op.out_dtype, rows)
        self._calls.append(Call(op, refs, _buffer_ref(out)))
        return out

    def finish(self, returned: Any) -> Recording:
        """The recording, given what `forward` returned."""
        outputs = returned if isinstance(returned, tuple) else (returned,)
        for output in outputs:
            if not isinstance(output, Buffer) or output.recorder is not self:
                raise RecordingRefused(
                    "the result", f"forward must return op outputs, got {type(output).__name__}"
                )
        return Recording(
            calls=tuple(self._calls),
            arena=tuple(self._arena),
            outputs=tuple(_buffer_ref(output) for output in outputs),
            returns_tuple=isinstance(returned, tuple),
            max_rows=self._most[Rows.TOKENS],
            max_logits=self._most[Rows.LOGITS],
            max_segments=self._most[Rows.SEGMENTS],
            max_blocks=self._max_blocks,
        )

    def _take(self, shape: tuple[int, ...], dtype: torch.dtype, rows: Rows) -> Buffer:
        """A buffer in the smallest free place that holds it, else in a new one.

        The call's arguments are alive here, so an output never shares a place with an input.
        """
        size = prod(shape) * dtype.itemsize
        fitting = [place for place in self._free if self._arena[place] >= size]
        if fitting:
            place = min(fitting, key=lambda free: (self._arena[free], free))
            self._free.remove(place)
        else:
            place = len(self._arena)
            self._arena.append(size)
        root = Root(place)
        weakref.finalize(root, self._free.append, place).atexit = False
        return Buffer(self, root, torch.empty(shape, dtype=dtype, device="meta"), rows)

    def _ref(self, op: str, arg: Any, spec: ArgSpec) -> Ref:
        if isinstance(arg, Buffer | Field | BatchHeader) and arg.recorder is not self:
            raise RecordingRefused(op, f"argument {spec.name} comes from another recording")
        match spec.kind:
            case ArgKind.ACTIVATION if isinstance(arg, Buffer):
                if spec.rows not in (Rows.ANY, arg.rows):
                    raise RecordingRefused(
                        op, f"argument {spec.name} has {arg.rows} rows, not {spec.rows}"
                    )
                return _buffer_ref(arg)
            case ArgKind.FIELD if isinstance(arg, Field):
                return FieldRef(arg.name)
            case ArgKind.FIELD if isinstance(arg, Buffer):
                return _buffer_ref(arg)
            case ArgKind.BATCH if isinstance(arg, BatchHeader):
                return BatchRef()
            case ArgKind.CACHE if isinstance(arg, Tensor):
                return ConstRef(arg)
        raise RecordingRefused(
            op, f"argument {spec.name} must be of kind {spec.kind}, got {type(arg).__name__}"
        )


def record(
    forward: Callable[[Any], Any],
    *,
    max_rows: int,
    max_logits: int,
    max_segments: int,
    max_blocks: int,
) -> Recording:
    """Run `forward(batch)` once on stand-ins; called at load, after the caches exist.

    `forward` returns an op's output or a tuple of them. RecordingRefused names the op, or the
    operation outside ops, that cannot be replayed; the engine then runs eagerly.
    """
    recorder = Recorder(
        max_rows=max_rows,
        max_logits=max_logits,
        max_segments=max_segments,
        max_blocks=max_blocks,
    )
    return recorder.finish(forward(recorder.header))


def _buffer_ref(buffer: Buffer) -> BufferRef:
    meta = buffer.meta
    return BufferRef(
        place=buffer.root.place,
        rows=buffer.rows,
        dtype=meta.dtype,
        tail=tuple(meta.shape[1:]),
        strides=tuple(meta.stride()),
        offset=int(meta.storage_offset()),
    )


class ReferenceRecorder:
    """Replays recordings op by op in Python: what a recording means, not a fast way to run it."""

    def compile(self, recording: Recording) -> ReferenceProgram:
        """A callable that takes a batch and returns what `forward` would."""
        return ReferenceProgram(recording)

    def replay(self, recording: Recording, batch: PackedBatch) -> Any:
        """Compile and run once."""
        return self.compile(recording)(batch)


class ReferenceProgram:
    """A recording with its arena. An output is valid until the next call."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        device = recording.calls[0].op.device if recording.calls else torch.device("cpu")
        self._arena = [
            torch.empty(size, dtype=torch.uint8, device=device) for size in recording.arena
        ]

    def __call__(self, batch: PackedBatch) -> Any:
        recording = self._recording
        sizes = (batch.rows, batch.logits, batch.segments)
        most = (recording.max_rows, recording.max_logits, recording.max_segments)
        if any(size > limit for size, limit in zip(sizes, most, strict=True)):
            raise StepFault(
                f"a batch of {sizes} rows, logits and segments does not fit a recording of {most}"
            )
        for call in recording.calls:
            args = tuple(self._resolve(ref, batch) for ref in call.args)
            out = None if call.out is None else self._buffer(call.out, batch)
            call.op.run_into(args, out)
        return self.results(batch)

    def results(self, batch: PackedBatch) -> Any:
        """What the latest call has returned, as the rows of this batch."""
        recording = self._recording
        outputs = tuple(self._buffer(ref, batch) for ref in recording.outputs)
        return outputs if recording.returns_tuple else outputs[0]

    def _resolve(self, ref: Ref, batch: PackedBatch) -> Any:
        match ref:
            case BufferRef():
                return self._buffer(ref, batch)
            case FieldRef(name):
                return getattr(batch, name)
            case BatchRef():
                return batch
            case ConstRef(value):
                return value

    def _buffer(self, ref: BufferRef, batch: PackedBatch) -> Tensor:
        rows = {
            Rows.TOKENS: batch.rows,
            Rows.LOGITS: batch.logits,
            Rows.SEGMENTS: batch.segments,
        }[ref.rows]
        memory = self._arena[ref.place]
        usable = memory[: memory.numel() // ref.dtype.itemsize * ref.dtype.itemsize]
        return usable.view(ref.dtype).as_strided((rows, *ref.tail), ref.strides, ref.offset)
