"""Clocks on the parts of a step: an engine's phases, its ops, its sampler."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from luce_core.batch.packed import PackedBatch
from luce_core.engine import EngineCapabilities, MemoryNeed, SeqEngine
from luce_core.kv.slot_table import Slot
from luce_core.ops.bound import BoundOp
from luce_core.ops.program import Bounded, Profiled, Program, Replay, Work
from luce_core.plan import StepPlan, StepResult
from luce_core.request import Request
from luce_core.sampling.sampler import Sampler


class Stopwatch:
    """Seconds of one step by phase, and by op or fused part. `take` starts the next one. `work` is
    what the last replay that can say so (see Bounded) had to do.

    `wait` returns when the device has done what it was given. While `by_op` is False, replays are
    not asked for their parts, so that nothing but clocks is added to a step.
    """

    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait
        self.by_op = True
        self.phases: defaultdict[str, float] = defaultdict(float)
        self.ops: defaultdict[str, float] = defaultdict(float)
        self.work: dict[str, tuple[Work, ...]] = {}

    def take(self) -> tuple[dict[str, float], dict[str, float]]:
        """(phases, ops) since the last call."""
        taken = dict(self.phases), dict(self.ops)
        self.phases.clear()
        self.ops.clear()
        return taken

    def since(self, started: float, phase: str) -> None:
        """Add the time since `started` (of `time.perf_counter`) to a phase."""
        self.phases[phase] += time.perf_counter() - started


class TimedEngine:
    """The engine with a clock on `lower_plan` and `execute`; the rest passes through."""

    def __init__(self, engine: SeqEngine, watch: Stopwatch) -> None:
        self._engine = engine
        self._watch = watch

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._engine.capabilities

    @property
    def memory_need(self) -> MemoryNeed:
        return self._engine.memory_need

    def allocate(self, total_blocks: int) -> None:
        self._engine.allocate(total_blocks)

    def admit(self, slot: Slot, request: Request) -> None:
        self._engine.admit(slot, request)

    def lower_plan(self, plan: StepPlan) -> Any:
        started = time.perf_counter()
        lowered = self._engine.lower_plan(plan)
        self._watch.since(started, "lower")
        return lowered

    def execute(self, lowered: Any) -> StepResult:
        started = time.perf_counter()
        result = self._engine.execute(lowered)
        self._watch.wait()
        self._watch.since(started, "execute")
        return result

    def commit_prefill(self, slot: Slot) -> None:
        self._engine.commit_prefill(slot)

    def retire(self, slot: Slot) -> None:
        self._engine.retire(slot)

    def close(self) -> None:
        self._engine.close()


@contextmanager
def watched(watch: Stopwatch, programs: Sequence[Program]) -> Iterator[None]:
    """Inside the block the watch hears of every sampling, and of what programs do.

    A replayed program is timed as a whole, and by part if it can say so (see Profiled); where
    programs run op by op, each call of an op is timed.
    """
    replays = [program.run for program in programs if isinstance(program.run, Replay)]

    def ask(compiled: Callable[[PackedBatch], Any], batch: PackedBatch) -> None:
        started = time.perf_counter()
        if isinstance(compiled, Profiled):
            for name, seconds in compiled.profile(batch).items():
                watch.ops[name] += seconds
        if isinstance(compiled, Bounded):
            watch.work = dict(compiled.work(batch))
        watch.since(started, "aside")

    def run(compiled: Callable[[PackedBatch], Any], batch: PackedBatch) -> Any:
        if watch.by_op:
            ask(compiled, batch)
        started = time.perf_counter()
        result = compiled(batch)
        watch.wait()
        watch.since(started, "kernels")
        return result

    def op(bound: BoundOp, seconds: float) -> None:
        watch.ops[bound.spec.name] += seconds
        watch.phases["kernels"] += seconds

    def sample(sampler: Sampler, seconds: float) -> None:
        watch.phases["sample"] += seconds

    with ExitStack() as stack:
        stack.enter_context(_timed(Sampler, "accept", sample, watch.wait))
        if replays:
            for replay in replays:
                replay.around = run
                stack.callback(setattr, replay, "around", None)
        else:
            stack.enter_context(_timed(BoundOp, "__call__", op, watch.wait))
        yield


def ops_source(programs: Sequence[Program]) -> str:
    """Where the times of ops come from, for readers of a report."""
    replays = [program.run for program in programs if isinstance(program.run, Replay)]
    if not replays:
        return "each call of an op"
    if all(isinstance(replay.compiled, Profiled) for replay in replays):
        return "the provider's profile of the replay"
    return "nowhere: the provider does not profile its replay"


@contextmanager
def _timed(
    owner: type, name: str, record: Callable[[Any, float], None], wait: Callable[[], None]
) -> Iterator[None]:
    """Replace a method of a class by one that reports its seconds, for as long as the block."""
    original = getattr(owner, name)

    def timed(self: Any, *args: Any, **named: Any) -> Any:
        started = time.perf_counter()
        result = original(self, *args, **named)
        wait()
        record(self, time.perf_counter() - started)
        return result

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, original)
