"""What a step costs outside the engine: scheduler, step loop, delivery; the engine does nothing.

    python benchmarks/step_overhead.py

Prints microseconds per step by number of decoding slots, and what a queue of 100,000 requests adds
to the planning of a step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from luce_core.engine import EngineCapabilities, MemoryNeed, PrefillLimits, hookimpl
from luce_core.kv.slot_table import Slot
from luce_core.plan import SlotOutput, StepPlan, StepResult, TokenEvent
from luce_core.request import GREEDY, Request, RequestTimes
from luce_core.runtime.hub import Hub, StreamLimits
from luce_core.runtime.inbox import Inbox
from luce_core.server.metrics import Metrics
from luce_core.testing.driver import Driver
from luce_core.testing.fake_server import byte_text

STEPS, REPEATS = 200, 5
ONE_TOKEN = SlotOutput((1,))
NO_TOKEN = SlotOutput()


class NullEngine:
    """Answers every plan with token 1."""

    def __init__(self, slots: int) -> None:
        limits = PrefillLimits(max_prompts=slots, rows_per_slot=64, rows_total=4096, quantum=64)
        self.capabilities = EngineCapabilities(
            max_slots=slots,
            max_context=1 << 20,
            block_size=16,
            vocab_size=2,
            max_step_rows=8192,
            with_decode=limits,
            idle=limits,
            lone=limits,
        )
        self.memory_need = MemoryNeed(bytes_per_token=1)

    def allocate(self, total_blocks: int) -> None: ...

    def admit(self, slot: Slot, request: Request) -> None: ...

    @hookimpl
    def lower_plan(self, plan: StepPlan) -> StepPlan:
        return plan

    @hookimpl
    def execute(self, lowered: StepPlan) -> StepResult:
        outputs = {row.slot_id: ONE_TOKEN for row in lowered.decode}
        for piece in lowered.prefill:
            outputs[piece.slot_id] = ONE_TOKEN if piece.is_last else NO_TOKEN
        return StepResult(outputs)

    @hookimpl
    def commit_prefill(self, slot: Slot) -> None: ...

    @hookimpl
    def retire(self, slot: Slot) -> None: ...

    def close(self) -> None: ...


def decoding(slots: int) -> Driver:
    """A driver with every slot decoding; events are counted and dropped."""
    driver = Driver(NullEngine(slots), pool_blocks=slots * 200)  # type: ignore[arg-type]
    driver.loop._post = _drop
    for _ in range(slots):
        driver.submit([0] * 8, max_tokens=100_000)
    for _ in range(4):
        driver.loop.step()
    return driver


def _drop(events: list[TokenEvent]) -> None:
    assert events


def microseconds_per_step(driver: Driver, steps: int = STEPS) -> float:
    started = time.perf_counter()
    for _ in range(steps):
        driver.loop.step()
    return (time.perf_counter() - started) / steps * 1e6


def microseconds_per_delivery(slots: int, steps: int = STEPS) -> float:
    """The hub's part: one token for each of `slots` streams, through metrics and text pipelines."""
    limits = StreamLimits(buffer_bytes=1 << 40, stalled_reader_s=1e9)
    hub = Hub(Inbox(), max_unfinished=slots, limits=limits, observer=Metrics())
    text = byte_text()
    hub.reserve(slots)
    for _ in range(slots):
        request = Request(
            id=hub.next_id(),
            prompt=(1,),
            params=GREEDY,
            max_tokens=1 << 20,
            stop_ids=frozenset(),
            times=RequestTimes(0.0),
        )
        hub.open(request, text.plain_pipeline())
    events = [TokenEvent(number + 1, (97,)) for number in range(slots)]
    started = time.perf_counter()
    for _ in range(steps):
        hub.deliver(events)
    return (time.perf_counter() - started) / steps * 1e6


def planning_microseconds(driver: Driver, steps: int = STEPS) -> float:
    """Admission and planning of a step, as the loop calls them."""
    before, count = driver.loop.trace.plan_s, driver.loop.trace.steps
    for _ in range(steps):
        driver.loop.step()
    trace = driver.loop.trace
    return (trace.plan_s - before) / (trace.steps - count) * 1e6


def medians(measure: Iterable[float]) -> tuple[float, float, float]:
    values = sorted(measure)
    return values[0], statistics.median(values), values[-1]


def main() -> None:
    console = Console(highlight=False)
    table = Table("slots", "engine: min", "median", "max", "deliver: min", "median", "max")
    table.title = "a decode step: us on the engine thread, us of delivery on the asyncio thread"
    for slots in (1, 8, 64, 256):
        driver = decoding(slots)
        step = medians(microseconds_per_step(driver) for _ in range(REPEATS))
        deliver = medians(microseconds_per_delivery(slots) for _ in range(REPEATS))
        table.add_row(str(slots), *(f"{value:.0f}" for value in (*step, *deliver)))
    console.print(table)
    table = Table("queued", "us of planning: min", "median", "max", title="planning, 8 slots")
    short, long = decoding(8), decoding(8)
    for _ in range(100_000):
        long.submit([0] * 8, max_tokens=1)
    for driver in (short, long):
        driver.loop.step()
    runs: dict[str, list[float]] = {"0": [], "100000": []}
    for _ in range(2 * REPEATS + 1):  # A B A B, so that a noisy minute hits both
        runs["0"].append(planning_microseconds(short))
        runs["100000"].append(planning_microseconds(long))
    for queued, values in runs.items():
        table.add_row(queued, *(f"{value:.1f}" for value in medians(values)))
    console.print(table)
    ratios = [b / a for a, b in zip(runs["0"], runs["100000"], strict=True)]
    console.print(f"ratio of planning times: median {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
