"""/health tells the truth, and what is served before, after and beside a healthy engine."""

from __future__ import annotations

import asyncio

from luce_core.testing.fake_engine import FakeEngine, HashMind
from luce_core.testing.fake_server import FakeServer


async def test_a_step_that_hangs_makes_health_503_until_it_returns(
    client, raw, body_of, eventually
):
    engine = FakeEngine(HashMind())
    async with FakeServer(engine, settings={"stall_timeout": 0.2}) as server:
        await asyncio.sleep(0.3)
        assert (await client.get(server, "/health")).status == 200  # idle for longer than that
        engine.hold()
        waiting = await raw(server)
        waiting.send("/v1/chat/completions", body_of("a", stream=True, max_tokens=3), close=True)
        await asyncio.to_thread(engine.wait_held)
        assert (await client.get(server, "/health")).status == 200
        await asyncio.sleep(0.3)
        reply = await client.get(server, "/health")
        assert (reply.status, reply.error["code"]) == (503, "engine_stalled")
        engine.release()
        assert b"[DONE]" in await waiting.rest()
        assert (await client.get(server, "/health")).json == {"status": "ok"}
        await asyncio.sleep(0.3)
        assert (await client.get(server, "/health")).status == 200


async def test_while_loading_everything_is_503_json_with_retry_after(client):
    async with FakeServer(loaded=False) as server:
        replies = [await client.get(server, path) for path in ("/health", "/v1/models", "/props")]
        replies.append(await client.chat(server))
        for reply in replies:
            assert reply.status == 503
            assert reply.error["code"] == "loading"
            assert int(reply.headers["Retry-After"]) >= 1
        server.load()
        assert (await client.get(server, "/health")).status == 200
        assert (await client.chat(server, max_tokens=2)).status == 200


async def test_draining_refuses_new_requests_and_finishes_accepted_ones(
    client, raw, body_of, eventually
):
    engine = FakeEngine(HashMind(), step_ms=5)
    async with FakeServer(engine) as server:
        running = await raw(server)
        running.send("/v1/chat/completions", body_of("a", stream=True, max_tokens=30), close=True)
        await running.until(b"data:")
        drained = asyncio.ensure_future(server.runtime.drain(10))
        await asyncio.sleep(0)
        reply = await client.chat(server)
        assert (reply.status, reply.error["code"]) == (503, "draining")
        assert "Retry-After" in reply.headers
        health = await client.get(server, "/health")
        assert (health.status, health.error["code"]) == (503, "draining")
        assert b"[DONE]" in await running.rest()
        assert await drained


async def test_a_stop_ends_streams_with_an_error_event(raw, body_of):
    engine = FakeEngine(HashMind(), step_ms=5, max_context=4096)
    async with FakeServer(engine) as server:
        running = await raw(server)
        running.send("/v1/chat/completions", body_of("a", stream=True, max_tokens=3000))
        await running.until(b"data:")
        await server.runtime.stop()
        tail = await running.rest()
        assert b'"code":"shutting_down"' in tail
        assert b"[DONE]" not in tail


async def test_a_lost_engine_ends_everything_and_refuses_the_rest(client, raw, body_of):
    engine = FakeEngine(HashMind(), step_ms=1)
    async with FakeServer(engine) as server:
        running = await raw(server)
        running.send("/v1/chat/completions", body_of("a", stream=True, max_tokens=900))
        await running.until(b"data:")
        engine.fail_at("step", times=99, error=RuntimeError("secret device state"))
        tail = await running.rest()
        assert b'"error"' in tail
        assert b"secret" not in tail
        for _ in range(3):  # step faults in a row end the engine
            reply = await client.chat(server, max_tokens=3)
            assert reply.status in (500, 503)
            assert "secret" not in reply.text
        assert (await client.get(server, "/health")).error["code"] == "engine_dead"
        reply = await client.chat(server)
        assert (reply.status, reply.error["code"]) == (503, "engine_dead")


async def test_one_failed_step_costs_its_own_requests_only(client):
    engine = FakeEngine(HashMind())
    engine.fail_at("step")
    async with FakeServer(engine) as server:
        assert (await client.chat(server, max_tokens=3)).status == 500
        assert (await client.chat(server, max_tokens=3)).status == 200
        assert (await client.get(server, "/health")).status == 200
        await server.check_leaks()
