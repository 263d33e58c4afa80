"""Work on what a client sent, off the event loop if there is much of it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

_LONG_BYTES = 64 << 10
_NICENESS = 10

_T = TypeVar("_T")


async def in_background(size: int | None, work: Callable[[], _T]) -> _T:
    """The result of `work` on a body of `size` bytes; None: of a size that was not announced."""
    if size is not None and size <= _LONG_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(None, _as_guest, work)


def _as_guest(work: Callable[[], _T]) -> _T:
    """On cores that kernels want, this thread comes second from now on."""
    if sys.platform == "linux":  # elsewhere niceness belongs to the process
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < _NICENESS:  # going back needs a privilege
            os.setpriority(os.PRIO_PROCESS, thread, _NICENESS)
    return work()
