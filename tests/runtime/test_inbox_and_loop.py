from __future__ import annotations

import threading
import time

from luce_core.commands import Cancel, Drain
from luce_core.plan import TokenEvent
from luce_core.request import FinishReason
from luce_core.runtime.inbox import Inbox
from luce_core.testing.byte_vocab import EOS
from luce_core.testing.driver import Driver
from luce_core.testing.fake_engine import FakeEngine, ScriptMind


def test_commands_come_out_once_and_in_order() -> None:
    inbox = Inbox()
    for number in range(3):
        inbox.put(Cancel(number))
    assert inbox.drain(0.0) == [Cancel(0), Cancel(1), Cancel(2)]
    assert inbox.drain(0.0) == []


def test_an_idle_loop_sleeps_until_a_command_comes() -> None:
    inbox = Inbox()
    timer = threading.Timer(0.05, inbox.put, [Drain()])
    timer.start()
    started = time.monotonic()
    assert inbox.drain(None) == [Drain()]
    assert time.monotonic() - started > 0.03


def test_a_bounded_wait_ends() -> None:
    assert Inbox().drain(0.01) == []


def test_a_step_posts_one_list_of_events() -> None:
    engine = FakeEngine(ScriptMind.text("ab", end=[EOS]), slots=3)
    engine.allocate(16)
    driver = Driver(engine, pool_blocks=16)
    posts: list[list[TokenEvent]] = []
    driver.loop._post = posts.append
    for _ in range(3):
        driver.submit(b"q", max_tokens=9, stop_ids=[EOS])
    driver.run()
    assert [len(post) for post in posts] == [3, 3, 3]
    assert all(event.finish is FinishReason.STOP for event in posts[-1])


def test_the_trace_adds_up_and_the_snapshot_is_of_the_last_idle_state() -> None:
    engine = FakeEngine(slots=2)
    engine.allocate(16)
    driver = Driver(engine, pool_blocks=16)
    driver.submit(b"prompt", max_tokens=4)
    driver.run()
    trace = driver.loop.trace
    assert trace.steps == 4
    assert [record.prefill_rows for record in trace.recent] == [6, 0, 0, 0]
    assert trace.engine_s > 0
    snapshot = driver.loop.snapshot
    assert (snapshot.running, snapshot.queued, snapshot.free_blocks) == (0, 0, 16)
