"""Work on what a client sent, off the event loop if there is much of it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

_LONG_BYTES = 64 << 10

_T = TypeVar("_T")


async def in_background(size: int | None, work: Callable[[], _T]) -> _T:
    """The result of `work` on a body of `size` bytes; None: of a size that was not announced."""
    if size is not None and size <= _LONG_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(None, _as_guest, work)


def _as_guest(work: Callable[[], _T]) -> _T:
    """From now on this thread gets what kernels and deliveries leave of the cores: an idle thread
    takes no core from a waking one, as a merely nice thread does."""
    if sys.platform == "linux":  # elsewhere priorities belong to the process
        thread = threading.get_native_id()
        if os.sched_getscheduler(thread) != os.SCHED_IDLE:  # going back may need a privilege
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    return work()
