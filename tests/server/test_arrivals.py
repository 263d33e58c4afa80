from __future__ import annotations

import asyncio

from luce_core.runtime.arrivals import Arrivals
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.testing.fake_engine import FakeEngine, HashMind
from luce_core.testing.fake_server import FakeServer


def test_what_has_begun_is_expected_until_it_ends_or_is_given_up() -> None:
    now = [0.0]
    arrivals = Arrivals(clock=lambda: now[0])
    assert not arrivals.is_any
    arrivals.begin("a")
    arrivals.begin("b")
    arrivals.end("a")
    arrivals.end("a")
    assert arrivals.is_any
    now[0] = 0.06
    assert not arrivals.is_any
    arrivals.begin("b")
    assert arrivals.is_any


async def _connect(server: FakeServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


async def test_connections_and_bodies_are_expected_until_they_are_read() -> None:
    async with FakeServer(FakeEngine(HashMind())) as server:
        arrivals = server.state.arrivals
        reader, writer = await _connect(server)
        while not arrivals.is_any:
            await asyncio.sleep(0.001)
        body = b'{"prompt":"x","max_tokens":1}'
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}"
        writer.write(head.encode() + b"\r\n\r\n" + body[:5])
        await asyncio.sleep(0.1)
        writer.write(body[5:])
        assert b"200" in await reader.readline()
        assert not arrivals.is_any
        writer.close()
        reader, writer = await _connect(server)
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(10):
            while arrivals._since:
                await asyncio.sleep(0.005)
        await server.check_leaks()


async def test_clients_that_come_together_share_their_first_step(client) -> None:
    engine = FakeEngine(HashMind(), slots=8)
    policy = SchedulerPolicy(admission_coalesce_ms=2000, coalesce_quiet_ms=100)
    async with FakeServer(engine, policy=policy) as server:
        replies = await asyncio.gather(
            *(client.complete(server, f"hello {n}", max_tokens=3) for n in range(5))
        )
        assert [reply.status for reply in replies] == [200] * 5
        assert len(engine.plans[0].prefill) == 5
        await server.check_leaks()
