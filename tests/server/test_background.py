"""Long bodies are worked on beside the loop, by threads that leave the cores to the kernels."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from luce_core.server.background import in_background

LONG = 1 << 20


def policy() -> int:
    return os.sched_getscheduler(threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="priorities belong to the process here")
async def test_a_long_body_is_worked_on_by_a_thread_that_takes_what_is_left() -> None:
    before = policy()
    assert await in_background(LONG, policy) == os.SCHED_IDLE
    assert await in_background(10, policy) == before
    assert policy() == before


@pytest.mark.skipif(sys.platform != "linux", reason="priorities belong to the process here")
async def test_a_server_that_is_idle_already_asks_for_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Leaving the idle class may be a privilege: asking for it would fail every long body."""

    def refused(which: int, policy: int, parameters: object) -> None:
        raise PermissionError("not permitted")

    monkeypatch.setattr(os, "sched_getscheduler", lambda which: os.SCHED_IDLE)
    monkeypatch.setattr(os, "sched_setscheduler", refused)
    assert await in_background(LONG, lambda: "done") == "done"
