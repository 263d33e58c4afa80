"""One engine, its scheduler and its two threads, from start to drain."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time

from luce_core.commands import Drain, Stop
from luce_core.engine import SeqEngine
from luce_core.errors import Overloaded
from luce_core.runtime.arrivals import Arrivals
from luce_core.runtime.hub import Hub, HubObserver, StreamLimits
from luce_core.runtime.inbox import Inbox
from luce_core.runtime.step_loop import StepLoop
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.scheduler.scheduler import Scheduler

# How long a thread may hold the GIL while the other waits; Python's default of 5 ms would be
# longer than a whole decode step of a small model.
_GIL_SWITCH_S = 0.0005


class Runtime:
    """Starts the engine thread, tells its health, drains and stops it.

    `allocate` has been called on the engine. `start`, `drain` and `stop` run on the asyncio
    thread. `max_queue` bounds the requests that wait beyond those that can hold a slot. `arrivals`
    is what the HTTP side has not read yet.
    """

    def __init__(
        self,
        engine: SeqEngine,
        *,
        pool_blocks: int,
        policy: SchedulerPolicy,
        max_queue: int,
        limits: StreamLimits,
        observer: HubObserver,
        stall_timeout_s: float = 60.0,
        arrivals: Arrivals | None = None,
    ) -> None:
        self.engine = engine
        self.inbox = Inbox()
        self._arrivals = arrivals or Arrivals()
        self.hub = Hub(
            self.inbox,
            max_unfinished=engine.capabilities.max_slots + max_queue,
            limits=limits,
            observer=observer,
        )
        self.scheduler = Scheduler(
            engine,
            pool_blocks=pool_blocks,
            policy=policy,
            is_receiving=lambda: self.hub.is_receiving or self._arrivals.is_any,
        )
        self.loop = StepLoop(
            engine,
            self.scheduler,
            self.inbox,
            self.hub.post,
            max_step_faults=policy.max_step_faults,
        )
        self._stall_timeout_s = stall_timeout_s
        self._thread = threading.Thread(target=self._run, name="luce-engine", daemon=True)
        self._ended = asyncio.Event()
        self._aio: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        sys.setswitchinterval(_GIL_SWITCH_S)
        self._aio = asyncio.get_running_loop()
        await self.hub.start()
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run()
        finally:
            assert self._aio is not None
            with contextlib.suppress(RuntimeError):  # the asyncio loop is gone: nobody waits
                self._aio.call_soon_threadsafe(self._after_end)

    def _after_end(self) -> None:
        """The engine thread has left its loop: end what was submitted behind its back."""
        if self.loop.dead is not None:
            self.hub.closed_for = Overloaded(
                "the engine is lost; the server must be restarted",
                code="engine_dead",
                status=503,
                retry_after_s=10,
            )
        elif self.hub.closed_for is None:
            self.hub.closed_for = _draining()
        for command in self.inbox.drain(0.0):
            self.scheduler.handle(command)
        self.scheduler.end_all(*self.loop.last_words)
        self.hub.deliver(self.scheduler.take_events())
        self._ended.set()

    def trouble(self, now: float | None = None) -> str | None:
        """None while healthy, else a code for `/health`: engine_dead, engine_stalled, draining."""
        if self.loop.dead is not None:
            return "engine_dead"
        if self.hub.closed_for is not None:
            return self.hub.closed_for.code
        now = time.monotonic() if now is None else now
        if self.loop.working and now - self.loop.progress_at > self._stall_timeout_s:
            return "engine_stalled"
        return None

    async def wait_ended(self) -> None:
        """Returns when the engine thread has left its loop."""
        await self._ended.wait()

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests, let accepted ones finish; True if all did within the time."""
        if self.hub.closed_for is None:
            self.hub.closed_for = _draining()
        self.inbox.put(Drain())
        try:
            await asyncio.wait_for(self._ended.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def stop(self, timeout_s: float = 10.0) -> bool:
        """Cancel what is left and end the thread; False if a step in flight would not return."""
        if self.hub.closed_for is None:
            self.hub.closed_for = _draining()
        self.inbox.put(Stop())
        try:
            await asyncio.wait_for(self._ended.wait(), timeout_s)
        except TimeoutError:
            return False
        finally:
            await self.hub.close()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


def _draining() -> Overloaded:
    return Overloaded("the server is shutting down", code="draining", status=503, retry_after_s=5)
