"""The parts of a step that is replayed: tapes, and between them what the host does itself."""

from __future__ import annotations

import ctypes as c
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.errors import LuceError, StepFault
from luce_core.ops.bound import BoundOp
from luce_kernels_cpu import structs
from luce_kernels_cpu.emit import emit
from luce_kernels_cpu.graph import Record
from luce_kernels_cpu.library import last_error
from luce_kernels_cpu.memory import Memory
from luce_kernels_cpu.provider import Provider
from luce_kernels_cpu.structs import Domain


class TapePart:
    """Records that follow each other, as one call into the library."""

    def __init__(
        self,
        owner: Provider,
        limits: structs.Limits,
        records: Sequence[tuple[Record, bool]],
        memory: Memory,
    ) -> None:
        """Of each record, whether all workers meet after it."""
        library = owner.library
        self._owner = owner
        self._run = library.lk_tape_run
        self.count = len(records)
        tape: int | None = library.lk_tape_create(c.byref(limits))
        if tape is None:
            raise LuceError(last_error(library))
        self._tape = tape
        weakref.finalize(self, library.lk_tape_free, tape)
        for record, barrier in records:
            args = emit(record, memory)
            if library.lk_tape_add(tape, record.op, c.byref(args), c.sizeof(args), barrier):
                raise LuceError(last_error(library))

    def run(self, batch: PackedBatch, native: Any, spent: Any) -> None:
        """StepFault if the batch refers to what is not there. `spent`: where the nanoseconds of
        each record go, or None."""
        if self._run(self._tape, self._owner.pool, native, spent):
            raise StepFault(last_error(self._owner.library))


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of a value in the arena, of which a step fills those of its domain."""

    memory: Tensor
    domain: Domain

    def of(self, batch: PackedBatch) -> Tensor:
        return self.memory[: batch.logits if self.domain is Domain.LOGITS else batch.rows]


class HostPart:
    """One op of the host, on rows in the arena."""

    count = 1

    def __init__(self, op: BoundOp, args: tuple[Rows, ...], out: Rows) -> None:
        self._op, self._args, self._out = op, args, out

    def run(self, batch: PackedBatch, native: Any, spent: Any) -> None:
        started = time.perf_counter_ns()
        self._op.run_into(tuple(rows.of(batch) for rows in self._args), self._out.of(batch))
        if spent is not None:
            c.cast(spent, c.POINTER(c.c_int64))[0] = time.perf_counter_ns() - started
