"""The process's worker pool, and calls on it. Made when the first op is bound."""

from __future__ import annotations

import ctypes as c
import os
import weakref
from functools import cache
from typing import Any

import torch

from luce_core.errors import ConfigError, StepFault
from luce_core.ops.program import Rates
from luce_kernels_cpu import structs
from luce_kernels_cpu.library import last_error, native
from luce_kernels_cpu.structs import Op

# A worker that waits longer sleeps: others need the core. Most steps follow sooner, and to wake a
# sleeper takes 25 to 150 us on virtual cores, of which the caller loses 50.
SPIN_US = 500
SCRATCH_BYTES = 4 << 20


class Provider:
    """Runs records of the native library on a pool of workers; safe to use from several threads,
    whose calls then run one after the other."""

    def __init__(self, library: c.CDLL) -> None:
        self.library = library
        self._pool: int | None = None
        self._threads = 0
        self._end: weakref.finalize[..., Provider] | None = None

    @property
    def threads(self) -> int:
        """Workers of the pool; 0 while there is none."""
        return self._threads

    @property
    def isas(self) -> tuple[str, ...]:
        """Instruction sets of this machine that the library has kernels for, the best first."""
        return tuple(self.library.lk_isas().decode().split())

    def set_isa(self, isa: str) -> None:
        """Use kernels of one of `isas`, for this process. Weights keep those of their packing."""
        if self.library.lk_force_isa(isa.encode()):
            raise ConfigError(f"--kernel-isa {isa}: {last_error(self.library)}")

    def set_threads(self, threads: int) -> None:
        """Make the pool, or another if its size changes.

        Called while engines load, never during a step. torch gets one thread from now on: its
        own would compete with the pool for the same cores.
        """
        if threads != self._threads:
            self._replace_pool(threads)
        torch.set_num_threads(1)

    @property
    def pool(self) -> int:
        """The lk_pool. Kernels that were not bound by an engine get one of every core."""
        if self._pool is None:
            self.set_threads(len(os.sched_getaffinity(0)))
        assert self._pool is not None
        return self._pool

    def run(self, op: Op, args: c.Structure, batch: structs.Batch) -> None:
        """Run one record. StepFault if the batch does not fit it."""
        library = self.library
        if library.lk_run(self.pool, op, c.byref(args), c.sizeof(args), c.byref(batch)):
            raise StepFault(last_error(library))

    def rates(self, nbytes: int) -> Rates:
        """What the workers do at best, reading from memory of that many bytes."""
        library = self.library
        library.lk_pool_keep_all(self.pool, 1)
        found = (
            library.lk_peak_read(self.pool, nbytes),
            library.lk_peak_int8(self.pool),
            library.lk_peak_float(self.pool),
        )
        library.lk_pool_keep_all(self.pool, 0)
        if not all(found):
            raise ConfigError(last_error(library))
        return Rates(*found)

    def _replace_pool(self, threads: int) -> None:
        pool = self.library.lk_pool_create(threads, SPIN_US, SCRATCH_BYTES)
        if pool is None:
            raise ConfigError(f"--threads: {last_error(self.library)}")
        if self._end is not None:
            self._end()
        self._pool, self._threads = pool, threads
        self._end = weakref.finalize(self, self.library.lk_pool_destroy, pool)


@cache
def provider() -> Provider:
    """The one of this process. KernelsUnavailable if the library cannot be loaded."""
    return Provider(native())


def address(tensor: Any) -> int | None:
    """Where a tensor's values begin; None for no tensor."""
    return None if tensor is None else tensor.data_ptr()
