"""What is refused on arrival, how, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import time

import pytest

from luce_core.testing.fake_engine import FakeEngine, HashMind
from luce_core.testing.fake_server import FakeServer


async def test_a_prompt_larger_than_the_pool_is_refused_at_once_and_blocks_nobody(client):
    engine = FakeEngine(HashMind(), max_context=4096)
    async with FakeServer(engine, pool_blocks=8) as server:
        await client.complete(server, "warm", max_tokens=1)
        started = time.monotonic()
        reply = await client.complete(server, "x" * 200, max_tokens=5)
        assert time.monotonic() - started < 0.1
        assert reply.status == 400
        assert reply.error["code"] == "kv_capacity_exceeded"
        assert reply.error["param"] == "prompt"
        assert "200" in reply.error["message"]
        assert "128" in reply.error["message"]
        assert (await client.complete(server, "x" * 10, max_tokens=5)).status == 200
        await server.check_leaks()


async def test_a_prompt_that_fits_ends_with_length_when_the_pool_is_full(client):
    engine = FakeEngine(HashMind(), max_context=4096)
    async with FakeServer(engine, pool_blocks=8) as server:
        reply = await client.complete(server, "x" * 100, max_tokens=100)
        assert reply.status == 200
        assert reply.json["choices"][0]["finish_reason"] == "length"
        assert reply.json["usage"]["completion_tokens"] <= 29
        await server.check_leaks()


@pytest.mark.parametrize("stream", [False, True])
async def test_context_overflow_is_a_400_with_both_counts_before_any_header(client, stream):
    async with FakeServer(FakeEngine(max_context=64)) as server:
        reply = await client.chat(server, "y" * 100, stream=stream)
        assert reply.status == 400
        error = reply.error
        assert error["code"] == "context_length_exceeded"
        assert error["type"] == "invalid_request_error"
        assert error["param"] == "messages"
        assert "maximum context length is 64 tokens" in error["message"]
        assert "119 tokens" in error["message"]


async def test_only_context_errors_are_called_context_errors(client):
    async with FakeServer() as server:
        for body in ({"messages": []}, {"messages": [{"role": "x"}]}, {"temperature": -1}):
            reply = await client.post(server, "/v1/chat/completions", body)
            assert reply.status == 400
            assert reply.error["code"] != "context_length_exceeded"


async def test_absent_max_tokens_means_the_rest_of_the_context(client):
    async with FakeServer(FakeEngine(HashMind(), max_context=100)) as server:
        reply = await client.complete(server, "x" * 30)
        assert reply.json["usage"]["completion_tokens"] == 70
        assert reply.json["choices"][0]["finish_reason"] == "length"


async def test_a_full_queue_answers_429_at_once_on_every_route_and_disturbs_nobody(
    client, raw, body_of, eventually
):
    engine = FakeEngine(HashMind(), slots=1)
    async with FakeServer(engine, settings={"max_queue": 2}) as server:
        engine.hold()
        accepted = []
        for number in range(3):
            waiting = await raw(server)
            body = body_of(f"n{number}", stream=True, max_tokens=3)
            waiting.send("/v1/chat/completions", body, close=True)
            accepted.append(waiting)
        await eventually(lambda: server.runtime.hub.unfinished == 3)
        for route in (client.chat, client.complete):
            for stream in (False, True):
                started = time.monotonic()
                reply = await route(server, "late", stream=stream)
                assert time.monotonic() - started < 0.1
                assert reply.status == 429
                assert int(reply.headers["Retry-After"]) >= 1
                assert reply.error["code"] == "queue_full"
                assert reply.error["type"] == "rate_limit_error"
        engine.release()
        for waiting in accepted:
            assert b"[DONE]" in await waiting.rest()
        assert server.metrics.rejections["queue_full"] == 4
        await server.check_leaks()


async def test_choices_that_can_never_be_queued_together_are_a_400_not_a_429(client):
    engine = FakeEngine(HashMind(), slots=1)
    async with FakeServer(engine, settings={"max_queue": 2}) as server:
        reply = await client.chat(server, n=4, max_tokens=2)
        assert (reply.status, reply.error["param"]) == (400, "n")
        reply = await client.complete(server, ["a", "b", "c", "d"], max_tokens=2)
        assert (reply.status, reply.error["param"]) == (400, "prompt")
        assert (await client.chat(server, n=3, max_tokens=2)).status == 200
        await server.check_leaks()


async def test_a_refused_prompt_gives_its_reservation_back(client):
    engine = FakeEngine(max_context=64)
    async with FakeServer(engine, settings={"max_queue": 0}) as server:
        for _ in range(20):
            assert (await client.complete(server, "z" * 100)).status == 400
            assert (await client.complete(server, ["ok", "z" * 100])).status == 400
            assert (await client.complete(server, "")).status == 400
        assert server.runtime.hub.unfinished == 0
        assert (await client.complete(server, "ok", max_tokens=2)).status == 200


async def test_a_failing_admission_is_a_503_and_takes_nothing(client, solo):
    engine = FakeEngine(HashMind())
    engine.fail_at("admit", times=50)
    async with FakeServer(engine) as server:
        for _ in range(50):
            reply = await client.chat(server, max_tokens=3)
            assert (reply.status, reply.error["code"]) == (503, "admission_failed")
        await server.check_leaks()
        reply = await client.chat(server, "after", max_tokens=20)
        assert reply.json["choices"][0]["message"]["content"] == solo("after", max_tokens=20)


async def test_mixed_lengths_at_once_are_each_as_if_alone(client, solo):
    sizes = ((1, 1), (15, 40), (16, 7), (17, 100), (33, 2), (257, 63))
    async with FakeServer(FakeEngine(HashMind(), slots=6)) as server:
        replies = await asyncio.gather(
            *(client.complete(server, "p" * size, max_tokens=most) for size, most in sizes)
        )
        for (size, most), reply in zip(sizes, replies, strict=True):
            text = reply.json["choices"][0]["text"]
            assert text == solo("p" * size, max_tokens=most, raw=True)
        await server.check_leaks()
