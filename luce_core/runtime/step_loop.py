"""The loop of the engine thread: the only file that knows all parties of a step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from luce_core.engine import SeqEngine
from luce_core.errors import EngineDead, SlotFault, StepFault
from luce_core.plan import SlotOutput, StepPlan, StepResult, TokenEvent, validate_result
from luce_core.request import FinishReason
from luce_core.runtime.inbox import Inbox
from luce_core.runtime.snapshot import Snapshot
from luce_core.runtime.step_trace import StepRecord, StepTrace
from luce_core.scheduler.scheduler import SHUTTING_DOWN, Scheduler

log = logging.getLogger(__name__)

ENGINE_DEAD = "engine_dead: the engine is lost; the server must be restarted"

_SNAPSHOT_EVERY_S = 0.1


class StepLoop:
    """Drains commands, plans, runs the engine, applies, posts events; one thread, no clients.

    `post` gets the events of each pass and must not block. After `run` has returned, `dead` holds
    the error if the engine was lost.
    """

    def __init__(
        self,
        engine: SeqEngine,
        scheduler: Scheduler,
        inbox: Inbox,
        post: Callable[[list[TokenEvent]], None],
        *,
        max_step_faults: int = 3,
    ) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._inbox = inbox
        self._post = post
        self._vocab_size = engine.capabilities.vocab_size
        self._max_step_faults = max_step_faults
        self._faults_in_row = 0
        self._snapshot_due = 0.0
        self.step_faults = 0
        self.dead: EngineDead | None = None
        self.trace = StepTrace()
        self.snapshot = Snapshot.of(scheduler)
        self.progress_at = time.monotonic()
        self.working = False

    def run(self) -> None:
        """Loop until drained or stopped. Every accepted request has ended when this returns."""
        scheduler = self._scheduler
        try:
            while not (scheduler.stopped or (scheduler.draining and scheduler.is_idle)):
                self.step()
        except EngineDead as error:
            log.critical("the engine is lost: %s", error)
            self.dead = error
        except Exception as error:
            log.critical("the step loop failed", exc_info=True)
            self.dead = EngineDead(f"internal error in the step loop: {error}")
        finally:
            scheduler.end_all(*self.last_words)
            self._post(scheduler.take_events())
            self.snapshot = Snapshot.of(scheduler)
            self.working = False
            self._engine.close()

    @property
    def last_words(self) -> tuple[FinishReason, str]:
        """How requests end that are left when the loop is over."""
        if self.dead is not None:
            return FinishReason.ERROR, ENGINE_DEAD
        return FinishReason.CANCELLED, SHUTTING_DOWN

    def step(self) -> None:
        """One pass: commands, admission, plan, engine, results, events."""
        scheduler = self._scheduler
        commands = self._inbox.drain(scheduler.wait_s())
        started = time.monotonic()
        if not self.working:  # idle until now: a stall is counted from here
            self.progress_at = started
        for command in commands:
            scheduler.handle(command)
        self.working = not scheduler.is_idle
        scheduler.admit()
        plan = scheduler.plan()
        planned = time.monotonic()
        ran = planned
        if not plan.is_empty:
            result = self._run(plan)
            ran = time.monotonic()
            scheduler.apply(plan, result)
        events = scheduler.take_events()
        if events:
            self._post(events)
        finished = time.monotonic()
        if not plan.is_empty:
            prefill_rows = sum([len(piece.tokens) for piece in plan.prefill])
            self.trace.add(
                StepRecord(
                    plan.step,
                    prefill_rows,
                    len(plan.decode),
                    planned - started,
                    ran - planned,
                    finished - ran,
                )
            )
        self.working = not scheduler.is_idle
        self.progress_at = finished
        if finished >= self._snapshot_due or not self.working:
            self.snapshot = Snapshot.of(scheduler)
            self._snapshot_due = finished + _SNAPSHOT_EVERY_S

    def _run(self, plan: StepPlan) -> StepResult:
        """The engine's answer to the plan; what it raises becomes errors of the plan's slots."""
        failed: dict[int, SlotOutput] = {}
        engine = self._engine
        try:
            lowered, todo = self._lower(plan, failed)
            if todo.is_empty:
                return StepResult(failed)
            result = validate_result(todo, engine.execute(lowered), vocab_size=self._vocab_size)
        except EngineDead:
            raise
        except Exception as error:
            return self._step_fault(plan, error)
        self._faults_in_row = 0
        if failed:
            return StepResult({**result.outputs, **failed}, result.timing)
        return result

    def _lower(self, plan: StepPlan, failed: dict[int, SlotOutput]) -> tuple[object, StepPlan]:
        while True:
            try:
                return self._engine.lower_plan(plan), plan
            except SlotFault as fault:
                named = frozenset(fault.slot_ids) & set(plan.slot_ids)
                if not named:
                    raise StepFault(f"lower_plan blames slots outside the plan: {fault}") from fault
                log.error("step %d: %s", plan.step, fault)
                output = SlotOutput(error=f"slot_fault: {fault.reason}")
                failed.update(dict.fromkeys(named, output))
                plan = plan.without(named)
                if plan.is_empty:
                    return None, plan

    def _step_fault(self, plan: StepPlan, error: Exception) -> StepResult:
        self.step_faults += 1
        self._faults_in_row += 1
        log.error("step %d failed", plan.step, exc_info=error)
        if self._faults_in_row >= self._max_step_faults:
            raise EngineDead(
                f"{self._faults_in_row} steps failed in a row, the last with: {error}"
            ) from error
        output = SlotOutput(error="engine_error: the engine failed in a step of this request")
        return StepResult(dict.fromkeys(plan.slot_ids, output))
