"""The wait for company, as the scheduler's admission keeps it."""

from __future__ import annotations

import pytest

from luce_core.commands import Submit
from luce_core.request import GREEDY, Request, RequestTimes
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.scheduler.scheduler import Scheduler
from luce_core.testing.driver import Driver
from luce_core.testing.fake_engine import FakeEngine


class Waiting:
    """A scheduler that coalesces, on a clock that only the test moves."""

    def __init__(self, **policy) -> None:
        self.now = 0.0
        self.receiving = False
        engine = FakeEngine()
        engine.allocate(64)
        self.scheduler = Scheduler(
            engine,
            pool_blocks=64,
            policy=SchedulerPolicy(**policy),
            clock=lambda: self.now,
            is_receiving=lambda: self.receiving,
        )

    def arrive(self, number: int) -> None:
        request = Request(
            id=number,
            prompt=(1, 2, 3),
            params=GREEDY,
            max_tokens=9,
            stop_ids=frozenset(),
            times=RequestTimes(self.now),
        )
        self.scheduler.handle(Submit(request))

    def admitted_at(self) -> float:
        """Sleep as the loop would until somebody is let in."""
        for _ in range(100):
            self.scheduler.admit()
            if self.scheduler.running:
                assert self.scheduler.wait_s() == 0.0
                return self.now
            wait_s = self.scheduler.wait_s()
            assert wait_s is not None
            assert wait_s > 0
            self.now += wait_s
        raise AssertionError("nobody was let in")


def test_a_request_that_comes_alone_waits_only_for_a_quiet_moment() -> None:
    waiting = Waiting(admission_coalesce_ms=50, coalesce_quiet_ms=2)
    waiting.arrive(1)
    waiting.scheduler.admit()
    assert waiting.scheduler.running == 0
    assert waiting.scheduler.wait_s() == pytest.approx(0.002)
    assert waiting.admitted_at() == pytest.approx(0.002)


def test_each_arrival_begins_the_quiet_time_again_up_to_the_whole_wait() -> None:
    waiting = Waiting(admission_coalesce_ms=5, coalesce_quiet_ms=2)
    waiting.arrive(1)
    for number in (2, 3):
        waiting.now += 0.0015
        waiting.scheduler.admit()
        waiting.arrive(number)
    assert waiting.scheduler.running == 0
    assert waiting.admitted_at() == pytest.approx(0.005)
    assert waiting.scheduler.running == 3


def test_a_request_that_is_being_received_is_waited_for() -> None:
    waiting = Waiting(admission_coalesce_ms=50, coalesce_quiet_ms=2)
    waiting.receiving = True
    waiting.arrive(1)
    for _ in range(5):
        waiting.scheduler.admit()
        waiting.now += waiting.scheduler.wait_s() or 0.0
    assert waiting.scheduler.running == 0
    waiting.receiving = False
    waiting.arrive(2)
    assert waiting.admitted_at() == pytest.approx(0.012)
    assert waiting.scheduler.running == 2


def test_going_from_idle_to_busy_waits_at_most_the_set_time_and_once() -> None:
    waiting = Waiting(admission_coalesce_ms=50, coalesce_quiet_ms=2)
    waiting.receiving = True
    waiting.arrive(1)
    assert waiting.admitted_at() == pytest.approx(0.05)
    waiting.arrive(2)
    waiting.scheduler.admit()
    assert waiting.scheduler.running == 2


def test_a_burst_that_fills_the_slots_does_not_wait() -> None:
    policy = SchedulerPolicy(admission_coalesce_ms=10_000)
    engine = FakeEngine(slots=2)
    engine.allocate(64)
    driver = Driver(engine, pool_blocks=64, policy=policy)
    for _ in range(2):
        driver.submit([1, 2, 3], max_tokens=3)
    driver.run()
