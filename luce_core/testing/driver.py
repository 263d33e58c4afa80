"""Runs an engine under the real scheduler and step loop, in the calling thread and without text."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from luce_core.commands import Cancel, Finish, Submit
from luce_core.engine import SeqEngine
from luce_core.plan import TokenEvent, TokenLogprob, Usage
from luce_core.request import GREEDY, FinishReason, Request, RequestTimes, SamplingParams
from luce_core.runtime.inbox import Inbox
from luce_core.runtime.step_loop import StepLoop
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.scheduler.scheduler import Scheduler

NO_WAITING = SchedulerPolicy(admission_coalesce_ms=0)


@dataclass(slots=True)
class Output:
    """What a client would have seen of a request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishReason | None = None
    usage: Usage | None = None
    error: str | None = None
    ends: int = 0


class Driver:
    """`submit`, then `run` until idle; `outputs` holds what came out, by request id."""

    def __init__(
        self,
        engine: SeqEngine,
        *,
        pool_blocks: int,
        policy: SchedulerPolicy = NO_WAITING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.inbox = Inbox()
        self.scheduler = Scheduler(engine, pool_blocks=pool_blocks, policy=policy, clock=clock)
        self.outputs: dict[int, Output] = {}
        self.loop = StepLoop(
            engine,
            self.scheduler,
            self.inbox,
            self._post,
            max_step_faults=policy.max_step_faults,
        )
        self._ids = itertools.count(1)
        self._clock = clock

    def submit(
        self,
        prompt: Iterable[int],
        *,
        max_tokens: int,
        params: SamplingParams = GREEDY,
        stop_ids: Iterable[int] = (),
        choice_index: int = 0,
    ) -> Request:
        """Queue a request as the server would, after the same check for what can never fit."""
        ids = tuple(prompt)
        self.scheduler.rule.check(len(ids))
        request = Request(
            id=next(self._ids),
            prompt=ids,
            params=params,
            max_tokens=self.scheduler.rule.cap_max_tokens(len(ids), max_tokens),
            stop_ids=frozenset(stop_ids),
            times=RequestTimes(self._clock()),
            choice_index=choice_index,
        )
        self.outputs[request.id] = Output()
        self.inbox.put(Submit(request))
        return request

    def cancel(self, request: Request) -> None:
        self.inbox.put(Cancel(request.id))

    def finish(self, request: Request, tokens: int) -> None:
        self.inbox.put(Finish(request.id, tokens))

    def step(self) -> None:
        """One pass of the loop; never waits."""
        if self.scheduler.is_idle and not self.inbox.has_commands:
            return
        self.loop.step()

    def run(self, max_steps: int = 100_000) -> None:
        """Step until every request has ended."""
        for _ in range(max_steps):
            if self.scheduler.is_idle and not self.inbox.has_commands:
                return
            self.loop.step()
        raise AssertionError(f"not done after {max_steps} steps")

    def output(self, request: Request) -> Output:
        return self.outputs[request.id]

    def _post(self, events: list[TokenEvent]) -> None:
        for event in events:
            output = self.outputs[event.request_id]
            assert not output.ends, f"request {event.request_id}: news after its end"
            output.tokens.extend(event.tokens)
            output.logprobs.extend(event.logprobs or ())
            if event.finish is not None:
                output.ends += 1
                output.finish, output.usage, output.error = event.finish, event.usage, event.error


def run_alone(
    engine: SeqEngine,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    pool_blocks: int,
    params: SamplingParams = GREEDY,
    stop_ids: Iterable[int] = (),
) -> Output:
    """The output of one request with nobody else there, on an engine that has been allocated."""
    driver = Driver(engine, pool_blocks=pool_blocks)
    request = driver.submit(prompt, max_tokens=max_tokens, params=params, stop_ids=stop_ids)
    driver.run()
    return driver.output(request)
