"""Long bodies are worked on beside the loop, by threads that leave the cores to the kernels."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from luce_core.server.background import in_background

LONG = 1 << 20


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="niceness belongs to the process here")
async def test_a_long_body_is_worked_on_by_a_thread_that_comes_second() -> None:
    before = niceness()
    assert await in_background(LONG, niceness) >= 10
    assert await in_background(10, niceness) == before
    assert niceness() == before


@pytest.mark.skipif(sys.platform != "linux", reason="niceness belongs to the process here")
async def test_a_server_that_is_nicer_already_asks_for_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lowering the niceness again is a privilege: asking for it would fail every long body."""

    def refused(which: int, who: int, priority: int) -> None:
        raise PermissionError("not permitted")

    monkeypatch.setattr(os, "getpriority", lambda which, who: 15)
    monkeypatch.setattr(os, "setpriority", refused)
    assert await in_background(LONG, lambda: "done") == "done"
