"""The costs of steps are measured on the engine that will serve, and leave nothing behind."""

from __future__ import annotations

from typing import Any

import pytest

from luce_core.engine import PrefillLimits, hookimpl
from luce_core.errors import EngineDead
from luce_core.plan import StepResult
from luce_core.runtime.step_profile import measure_pacing
from luce_core.scheduler.pacing import Pacing
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.testing.driver import Driver, run_alone
from luce_core.testing.fake_engine import FakeEngine, rows_of
from luce_core.testing.leak_check import leak_check

BLOCKS = 1024


class CostlyEngine(FakeEngine):
    """Steps take `step_ms` and `row_ms` for each row, on a clock of its own."""

    def __init__(
        self, *, step_ms: float, row_ms: float, noise: tuple[float, ...] = (1.0,), **more: Any
    ) -> None:
        super().__init__(**more)
        self._step_ms, self._row_ms, self._noise = step_ms, row_ms, noise
        self.now = 0.0
        self.executed = 0
        self.allocate(BLOCKS)

    @hookimpl
    def execute(self, lowered: Any) -> StepResult:
        rows = self.plans[-1].rows
        factor = self._noise[self.executed % len(self._noise)]
        self.now += (self._step_ms + self._row_ms * rows) * factor / 1000
        self.executed += 1
        return super().execute(lowered)

    def measure(self, bounds: PrefillLimits | None = None) -> Pacing | None:
        chosen = bounds or SchedulerPolicy().limits(self.capabilities).with_decode
        return measure_pacing(self, pool_blocks=BLOCKS, bounds=chosen, clock=lambda: self.now)


def test_the_choice_follows_the_costs_of_the_engine() -> None:
    pacing = CostlyEngine(step_ms=4.0, row_ms=0.25, slots=8, max_context=2048).measure()
    # Four decoders: 5 ms. Up to 20 ms leave 15 ms, which are 60 rows.
    assert pacing is not None
    assert (pacing.rows, pacing.decoders) == (48, 4)
    assert pacing.decode_s == pytest.approx(5e-3)
    assert pacing.mixed_s == pytest.approx(17e-3)


def test_a_few_slow_runs_do_not_change_the_choice() -> None:
    noise = (1.0, 1.0, 1.01, 0.99, 7.0, 1.0, 1.02)
    engine = CostlyEngine(step_ms=4.0, row_ms=0.25, noise=noise, slots=8, max_context=2048)
    pacing = engine.measure()
    assert pacing is not None
    assert pacing.rows == 48


def test_measuring_takes_a_fraction_of_a_second_or_a_few_steps() -> None:
    quick = CostlyEngine(step_ms=4.0, row_ms=0.01, slots=8, max_context=2048)
    assert quick.measure() is not None
    assert quick.now < 1.0
    slow = CostlyEngine(step_ms=2000.0, row_ms=100.0, slots=8, max_context=2048)
    assert slow.measure() is not None
    assert slow.executed < 20


def test_the_rows_of_a_step_are_spread_over_the_slots_that_are_left() -> None:
    engine = CostlyEngine(step_ms=10.0, row_ms=0.001, slots=6, max_context=2048, chunk=64)
    pacing = engine.measure()
    assert pacing is not None
    assert pacing.rows == 128  # two slots beside four decoders, 64 rows each
    assert max(len(plan.prefill) for plan in engine.plans if plan.decode) == 2


@pytest.mark.parametrize("slots", [2, 3, 8])
@pytest.mark.parametrize("context", [64, 100, 2048])
@pytest.mark.parametrize("max_draft", [0, 3])
def test_every_shape_of_engine_can_be_measured(slots: int, context: int, max_draft: int) -> None:
    engine = CostlyEngine(
        step_ms=4.0,
        row_ms=0.25,
        slots=slots,
        max_context=context,
        max_draft=max_draft,
        accept=(0, 3),
    )
    pacing = engine.measure()
    assert pacing is not None
    assert pacing.decoders == min(4, slots - 1)
    assert engine.held_slots == []


def test_small_limits_and_a_single_slot_leave_nothing_to_choose() -> None:
    small = CostlyEngine(step_ms=4.0, row_ms=0.25, slots=6, chunk=4)
    assert small.measure() is None
    alone = CostlyEngine(step_ms=4.0, row_ms=0.25, slots=1)
    assert alone.measure() is None
    assert small.executed == alone.executed == 0


def test_measuring_leaves_no_trace() -> None:
    engine = CostlyEngine(step_ms=4.0, row_ms=0.25, slots=8, max_context=2048)
    assert engine.measure() is not None
    driver = Driver(engine, pool_blocks=BLOCKS)
    request = driver.submit(range(100), max_tokens=20)
    driver.run()
    leak_check(driver.scheduler, engine=engine)
    fresh = FakeEngine(slots=8, max_context=2048)
    fresh.allocate(BLOCKS)
    alone = run_alone(fresh, range(100), max_tokens=20, pool_blocks=BLOCKS)
    assert driver.output(request).tokens == alone.tokens


@pytest.mark.parametrize("place", ["admit", "lower", "row", "step", "commit"])
def test_an_engine_that_fails_at_it_is_served_unmeasured(place: str) -> None:
    engine = CostlyEngine(step_ms=4.0, row_ms=0.25, slots=8, max_context=2048)
    engine.fail_at(place, after=6)
    assert engine.measure() is None
    assert engine.held_slots == []


def test_a_lost_device_ends_the_start() -> None:
    engine = CostlyEngine(step_ms=4.0, row_ms=0.25, slots=8, max_context=2048)
    engine.fail_at("step", error=EngineDead("gone"))
    with pytest.raises(EngineDead):
        engine.measure()


def test_a_long_prompt_beside_decoders_keeps_steps_within_the_bound() -> None:
    engine = CostlyEngine(step_ms=4.0, row_ms=0.25, slots=8, max_context=4096)
    pacing = engine.measure()
    assert pacing is not None
    policy = SchedulerPolicy(
        prefill_chunk=pacing.rows,
        prefill_tokens=pacing.rows,
        long_prefill_tokens=pacing.rows,
        admission_coalesce_ms=0,
    )
    driver = Driver(engine, pool_blocks=BLOCKS, policy=policy)
    for _ in range(4):
        driver.submit(range(10), max_tokens=200)
    for _ in range(5):
        driver.step()
    engine.plans.clear()
    newcomer = driver.submit([1] * 2048, max_tokens=2)
    costs: list[float] = []
    while not driver.output(newcomer).tokens:
        before = engine.now
        driver.step()
        costs.append(engine.now - before)
    assert len(costs) > 2048 // 512
    assert max(costs) <= 4 * pacing.decode_s
    assert all(len(plan.decode) == 4 for plan in engine.plans)
    assert len(rows_of(engine.plans, 4)) == len(costs)
