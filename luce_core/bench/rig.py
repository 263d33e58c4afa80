"""A loaded engine under the real scheduler, step loop and text pipelines, without HTTP."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from luce_core.bench.stopwatch import Stopwatch, TimedEngine
from luce_core.errors import StepFault
from luce_core.load import LoadedModel
from luce_core.pace import build_policy
from luce_core.plan import TokenEvent
from luce_core.request import GREEDY, Request, RequestTimes
from luce_core.runtime.hub import Hub, StreamLimits
from luce_core.runtime.inbox import Inbox
from luce_core.runtime.step_loop import StepLoop
from luce_core.runtime.token_stream import TokenStream
from luce_core.scheduler.scheduler import Scheduler
from luce_core.server.metrics import Metrics
from luce_core.settings import Settings

_UNREAD = StreamLimits(buffer_bytes=1 << 40, stalled_reader_s=1e9)
Seconds = dict[str, float]
Parts = tuple[Seconds, Seconds]  # of a step: by phase, by op


class Rig:
    """Submit prompts, then step. One thread; texts are made and not read."""

    def __init__(self, settings: Settings, loaded: LoadedModel, watch: Stopwatch) -> None:
        self.watch = watch
        self._text = loaded.opened.text
        self._engine = TimedEngine(loaded.engine, watch)
        policy = replace(build_policy(settings), admission_coalesce_ms=0)
        self._scheduler = Scheduler(self._engine, pool_blocks=loaded.pool.blocks, policy=policy)
        self._inbox = Inbox()
        slots = loaded.engine.capabilities.max_slots
        self._hub = Hub(self._inbox, max_unfinished=slots, limits=_UNREAD, observer=Metrics([]))
        self._loop = StepLoop(self._engine, self._scheduler, self._inbox, self._keep)
        self._events: list[TokenEvent] = []
        self._random = random.Random(0)
        self._capabilities = loaded.engine.capabilities

    def submit(self, prompt_tokens: int, *, max_tokens: int) -> TokenStream:
        """Queue a request with random prompt ids, greedy, that nothing but its length ends."""
        vocab = self._capabilities.vocab_size
        ids = tuple(self._random.randrange(vocab) for _ in range(prompt_tokens))
        self._hub.reserve(1)
        request = Request(
            id=self._hub.next_id(),
            prompt=ids,
            params=GREEDY,
            max_tokens=max_tokens,
            stop_ids=frozenset(),
            times=RequestTimes(time.monotonic()),
        )
        return self._hub.open(request, self._text.plain_pipeline())

    def room_for(self, steps: int) -> int:
        """Most tokens that a request can be given in so many decode steps, and one."""
        return 1 + steps * (1 + self._capabilities.max_draft)

    @property
    def is_idle(self) -> bool:
        return self._scheduler.is_idle and not self._inbox.has_commands

    def step(self, *, by_op: bool = False) -> Parts:
        """One step and the delivery of its tokens, with `by_op` with a profile of its replay.

        Phase `step` is the engine thread's whole pass, `execute` the engine's part of it, `apply`
        what follows that; `deliver` comes last, on the asyncio thread of a server. StepFault if
        nothing is left to do, since requests end early only when the engine fails.
        """
        if self.is_idle:
            raise StepFault("the engine failed while it was measured; the log says why")
        watch = self.watch
        watch.take()
        watch.by_op = by_op
        self._events = []
        started = time.perf_counter()
        self._loop.step()
        watch.since(started, "step")
        started = time.perf_counter()
        self._hub.deliver(self._events)
        watch.since(started, "deliver")
        phases, ops = watch.take()
        record = self._loop.trace.recent[-1]
        phases["plan"] = record.plan_s
        aside = phases.pop("aside", 0.0)
        phases["step"] -= aside
        phases["execute"] = phases.get("execute", 0.0) - aside
        known = phases["plan"] + phases.get("lower", 0.0) + phases["execute"]
        phases["apply"] = phases["step"] - known
        return phases, ops

    def finish(self, streams: list[TokenStream]) -> None:
        """Cancel what still runs, so that the next measurement starts on an empty engine."""
        for stream in streams:
            self._hub.release(stream)
        while not self.is_idle:
            self._loop.step()
            self._hub.deliver(self._events)
            self._events = []

    def _keep(self, events: list[TokenEvent]) -> None:
        self._events.extend(events)
