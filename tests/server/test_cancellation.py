"""A client that leaves costs nothing more, wherever it leaves; nothing leaks."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from luce_core.request import State
from luce_core.testing.fake_engine import FakeEngine, HashMind, ScriptMind
from luce_core.testing.fake_server import FakeServer

CHAT = "/v1/chat/completions"


def steps_of(engine: FakeEngine, text: str) -> list[int]:
    """Numbers of the steps that hold prompt rows of the chat with this text."""
    wanted = text.encode()
    return [
        plan.step
        for plan in engine.plans
        if any(wanted in bytes(t for t in piece.tokens if t < 256) for piece in plan.prefill)
    ]


async def test_a_queued_request_is_dropped_when_its_client_leaves(raw, body_of, eventually):
    engine = FakeEngine(HashMind(), slots=1)
    async with FakeServer(engine) as server:
        a = await raw(server)
        engine.hold()
        a.send(CHAT, body_of("A" * 8, stream=True, max_tokens=5), close=True)
        await asyncio.to_thread(engine.wait_held)
        b = await raw(server)
        b.send(CHAT, body_of("B" * 8, stream=True, max_tokens=5), close=True)
        await b.until(b"\r\n\r\n")
        b.abort()
        c = await raw(server)
        c.send(CHAT, body_of("C" * 8, stream=True, max_tokens=5), close=True)
        await c.until(b"\r\n\r\n")
        await asyncio.sleep(0.05)
        engine.release()
        assert b"[DONE]" in await a.rest()
        assert b"[DONE]" in await c.rest()
        assert steps_of(engine, "B" * 8) == []
        # A: one prefill step and four decode steps, then C at once.
        assert steps_of(engine, "C" * 8) == [steps_of(engine, "A" * 8)[0] + 5]
        assert server.metrics.cancelled_in[State.QUEUED] == 1
        await server.check_leaks()


async def test_a_prompt_is_dropped_between_two_chunks(client, raw, body_of, eventually, solo):
    engine = FakeEngine(HashMind(), slots=1, chunk=64, step_ms=30)
    async with FakeServer(engine) as server:
        gone = await raw(server)
        gone.send(CHAT, body_of("x" * 640, stream=True, max_tokens=5))
        await eventually(lambda: len(engine.plans) >= 2)
        gone.abort()
        seen = len(engine.plans)
        await server.quiet()
        assert len(engine.plans) <= seen + 1
        assert server.metrics.cancelled_in[State.PREFILL] == 1
        engine.step_ms = 0
        reply = await client.chat(server, "next", max_tokens=20)
        assert reply.json["choices"][0]["message"]["content"] == solo("next", max_tokens=20)
        await server.check_leaks()


@pytest.mark.parametrize("stream", [False, True])
async def test_generation_stops_within_two_steps_of_a_disconnect(raw, body_of, eventually, stream):
    engine = FakeEngine(HashMind(), max_context=4096, step_ms=15)
    async with FakeServer(engine) as server:
        gone = await raw(server)
        gone.send(CHAT, body_of("hi", stream=stream, max_tokens=2000))
        await eventually(lambda: len(engine.plans) >= 6)
        gone.abort()
        seen = len(engine.plans)
        await server.quiet()
        assert len(engine.plans) <= seen + 2
        assert server.metrics.cancelled_in[State.DECODE] == 1
        await server.check_leaks()


async def test_a_client_that_leaves_while_its_body_arrives_reserves_nothing(raw, eventually):
    async with FakeServer() as server:
        gone = await raw(server)
        gone.writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n{"
        )
        await asyncio.sleep(0.05)
        gone.abort()
        await asyncio.sleep(0.05)
        assert server.engine.plans == []
        await server.check_leaks()


async def test_a_client_that_leaves_while_a_long_prompt_is_tokenised_reserves_nothing(
    raw, body_of, eventually
):
    engine = FakeEngine(max_context=8192)  # shorter ones refuse the text unread
    async with FakeServer(engine, settings={"max_queue": 0}) as server:
        gone = await raw(server)
        gone.send(CHAT, body_of("word " * 60_000, max_tokens=5))
        await eventually(lambda: server.runtime.hub.unfinished == 1)
        gone.abort()
        await server.check_leaks()
        assert server.engine.plans == []


async def test_one_of_several_choices_is_cancelled_with_all_others(raw, body_of, eventually):
    engine = FakeEngine(HashMind(), slots=2, max_context=4096, step_ms=5)
    async with FakeServer(engine) as server:
        for stream in (True, False):
            gone = await raw(server)
            gone.send(CHAT, body_of("hi", n=4, stream=stream, max_tokens=2000))
            await eventually(lambda: server.runtime.hub.unfinished == 4)
            await asyncio.sleep(0.03)
            gone.abort()
            await server.check_leaks()
        assert server.metrics.cancelled_in[State.QUEUED] == 4
        assert server.metrics.cancelled_in[State.DECODE] == 4


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_five_hundred_aborts_at_any_point_leak_nothing(client, raw, body_of, solo):
    engine = FakeEngine(HashMind(), slots=3, chunk=16)
    dice = random.Random(20240613)
    crowd = asyncio.Semaphore(12)
    async with FakeServer(engine, pool_blocks=64) as server:

        async def abort_one(number: int) -> None:
            point = dice.choice(("headers", "queued", "chunk", "token", "unread"))
            delay = dice.random() * 0.01
            stream = dice.random() < 0.7
            async with crowd:
                gone = await raw(server)
                if point == "headers":
                    gone.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x")
                elif point == "chunk":
                    gone.send(CHAT, body_of("p" * 200, stream=stream, max_tokens=50))
                elif point == "unread":
                    gone.send(CHAT, body_of(f"u{number}", stream=stream, max_tokens=2))
                    delay += 0.02
                else:
                    gone.send(CHAT, body_of(f"q{number}", stream=True, max_tokens=400))
                if point == "token":
                    marks = [b"data:"] * dice.randint(1, 3)  # a fast engine may need no more chunks
                    await gone.until(*marks, timeout_s=30)
                else:
                    await asyncio.sleep(delay)
                gone.abort()

        await asyncio.gather(*(abort_one(n) for n in range(100)))
        await server.quiet()
        engine.plans.clear()
        before = resident_bytes()
        for start in range(100, 500, 100):
            await asyncio.gather(*(abort_one(n) for n in range(start, start + 100)))
            engine.plans.clear()
        await server.check_leaks()
        grown = resident_bytes() - before
        assert grown < 5 << 20, f"{grown} bytes more after 400 aborts"
        assert server.metrics._open == {}
        for number in range(10):
            reply = await client.chat(server, f"fresh {number}", max_tokens=30)
            text = reply.json["choices"][0]["message"]["content"]
            assert text == solo(f"fresh {number}", max_tokens=30)
        await server.check_leaks()


async def test_a_stop_string_counts_as_a_stop_not_as_a_cancel(client):
    async with FakeServer(FakeEngine(ScriptMind.text("abcSTOPdef" * 20))) as server:
        for _ in range(5):
            events = await client.stream_chat(server, stop=["STOP"])
            assert (events.content(), events.finish()) == ("abc", "stop")
        await server.check_leaks()
        assert not +server.metrics.cancelled_in
        assert server.metrics.finished["stop"] == 5
