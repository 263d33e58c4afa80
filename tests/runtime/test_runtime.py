from __future__ import annotations

import asyncio
import threading
import time

from luce_core.commands import Submit
from luce_core.plan import TokenEvent
from luce_core.request import GREEDY, FinishReason, Request, RequestTimes
from luce_core.runtime.hub import StreamLimits
from luce_core.runtime.runtime import Runtime
from luce_core.runtime.token_stream import TokenStream
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.server.metrics import Metrics
from luce_core.testing.fake_engine import FakeEngine, ScriptMind
from luce_core.testing.fake_server import byte_text
from luce_core.testing.leak_check import leak_check


def make(engine: FakeEngine) -> Runtime:
    engine.allocate(32)
    return Runtime(
        engine,
        pool_blocks=32,
        policy=SchedulerPolicy(admission_coalesce_ms=0, max_step_faults=1),
        max_queue=8,
        limits=StreamLimits(),
        observer=Metrics(),
    )


def submit(runtime: Runtime) -> TokenStream:
    runtime.hub.reserve(1)
    request = Request(
        id=runtime.hub.next_id(),
        prompt=(1, 2, 3),
        params=GREEDY,
        max_tokens=4,
        stop_ids=frozenset(),
        times=RequestTimes(time.monotonic()),
    )
    return runtime.hub.open(request, byte_text().plain_pipeline())


async def read_end(stream: TokenStream) -> FinishReason | None:
    while True:
        chunk = await asyncio.wait_for(stream.read(time.monotonic), 10)
        if chunk.finish is not None:
            return chunk.finish


async def test_a_request_that_arrives_while_the_engine_dies_is_ended() -> None:
    engine = FakeEngine(ScriptMind.text("abc"))
    runtime = make(engine)
    late: list[TokenStream] = []

    def close_late() -> None:
        """The loop is over, the asyncio thread does not know it yet, and a request comes in."""
        runtime.inbox.put(Submit(late[0].request))

    engine.close = close_late  # type: ignore[method-assign]
    # Registered as `open` would, but handed over only when the loop has gone.
    request = Request(
        id=99,
        prompt=(1,),
        params=GREEDY,
        max_tokens=4,
        stop_ids=frozenset(),
        times=RequestTimes(time.monotonic()),
    )
    stream = TokenStream(request, byte_text().plain_pipeline())
    runtime.hub._streams[99] = runtime.hub._readers[99] = stream
    late.append(stream)
    await runtime.start()
    engine.fail_at("step")
    first = submit(runtime)
    assert await read_end(first) is FinishReason.ERROR
    assert await read_end(stream) is FinishReason.ERROR
    assert runtime.trouble() == "engine_dead"
    for each in (first, stream):
        runtime.hub.release(each)
    await runtime.stop()
    leak_check(runtime.scheduler, hub=runtime.hub)


async def test_drain_finishes_and_stop_ends_the_thread() -> None:
    runtime = make(FakeEngine(ScriptMind.text("abcdef"), step_ms=2))
    await runtime.start()
    streams = [submit(runtime) for _ in range(3)]
    assert await runtime.drain(10.0)
    assert [await read_end(stream) for stream in streams] == [FinishReason.LENGTH] * 3
    assert runtime.trouble() == "draining"
    assert await runtime.stop()
    assert "luce-engine" not in {thread.name for thread in threading.enumerate()}


async def test_a_step_that_never_returns_is_seen_and_stop_says_so() -> None:
    engine = FakeEngine(ScriptMind.text("abc"))
    runtime = make(engine)
    runtime._stall_timeout_s = 0.05
    await runtime.start()
    engine.hold()
    submit(runtime)
    await asyncio.to_thread(engine.wait_held)
    await asyncio.sleep(0.1)
    assert runtime.trouble() == "engine_stalled"
    assert not await runtime.stop(timeout_s=0.1)
    engine.release()
    await asyncio.wait_for(runtime.wait_ended(), 10)


def test_events_after_the_loop_is_closed_are_dropped_quietly(caplog) -> None:
    runtime_loop = asyncio.new_event_loop()
    runtime = runtime_loop.run_until_complete(_made())
    runtime.hub._loop = runtime_loop
    runtime_loop.close()
    runtime.hub.post([TokenEvent(1)])
    assert "had no reader" in caplog.text


async def _made() -> Runtime:
    return make(FakeEngine())
