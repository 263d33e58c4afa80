"""Connections: kept alive, pipelined, reused after a stream; addresses and ports."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from luce_core.errors import ConfigError
from luce_core.server.listen import check_exposure, open_sockets, url_of
from luce_core.testing.fake_engine import FakeEngine, ScriptMind
from luce_core.testing.fake_server import FakeServer

CHAT = "/v1/chat/completions"


async def read_reply(connection) -> dict:
    head = (await connection.until(b"\r\n\r\n")).decode()
    assert head.startswith("HTTP/1.1 200"), head
    length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
    while len(connection.seen) < length:
        connection.seen += await connection.reader.read(1 << 16)
    body, connection.seen = connection.seen[:length], connection.seen[length:]
    return json.loads(body)


async def test_an_idle_connection_is_kept_for_the_set_time_and_then_closed(raw):
    async with FakeServer(settings={"keepalive_timeout": 0.5}) as server:
        connection = await raw(server)
        for _ in range(3):
            connection.send("/health", method="GET")
            assert await read_reply(connection) == {"status": "ok"}
            await asyncio.sleep(0.25)  # each request starts the time anew
        assert await connection.rest(timeout_s=2) == b""


async def test_idle_connections_are_kept_longer_than_a_minute_by_default():
    assert FakeServer().settings.keepalive_timeout > 60


async def test_two_pipelined_requests_are_answered_in_order(raw, body_of):
    async with FakeServer(FakeEngine(ScriptMind.text("yes"))) as server:
        connection = await raw(server)
        connection.send(CHAT, body_of("one"))
        connection.send("/health", method="GET")
        first, second = await read_reply(connection), await read_reply(connection)
        assert first["choices"][0]["message"]["content"] == "yes"
        assert second == {"status": "ok"}


async def test_a_connection_is_reused_after_a_finished_stream(raw, body_of):
    async with FakeServer(FakeEngine(ScriptMind.text("yes"))) as server:
        connection = await raw(server)
        for _ in range(3):
            connection.send(CHAT, body_of("one", stream=True))
            await connection.until(b"data: [DONE]\n\n", b"0\r\n\r\n")
            connection.send(CHAT, body_of("two"))
            reply = await read_reply(connection)
            assert reply["choices"][0]["message"]["content"] == "yes"
        await server.check_leaks()


async def test_an_error_event_closes_the_connection(raw, body_of):
    engine = FakeEngine()
    engine.fail_at("row", after=2)
    async with FakeServer(engine) as server:
        connection = await raw(server)
        connection.send(CHAT, body_of("one", stream=True, max_tokens=9))
        assert b'"error"' in await connection.rest()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nBad Header\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 40_000 + b"\r\n\r\n",
        b"GET /" + b"z" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nAccept: text/html\r\nContent-Length: x\r\n\r\n",
    ],
)
async def test_broken_http_is_a_json_400_that_echoes_nothing(raw, request_bytes):
    async with FakeServer() as server:
        connection = await raw(server)
        connection.writer.write(request_bytes)
        head, _, body = (await connection.rest()).partition(b"\r\n\r\n")
        assert head.split(b" ", 2)[1] == b"400"
        assert json.loads(body)["error"]["code"] == "invalid_http"


async def test_localhost_is_served_on_both_address_families():
    async with FakeServer(settings={"host": "localhost"}) as server:
        assert server.urls[0].startswith("http://127.0.0.1:")
        for host in ["127.0.0.1", "::1"][: len(server.urls)]:
            async with asyncio.timeout(0.5):
                _, writer = await asyncio.open_connection(host, server.port)
            writer.close()
            await writer.wait_closed()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 loopback here")
async def test_an_ipv6_address_is_shown_in_brackets_with_the_real_port(client):
    async with FakeServer(settings={"host": "::1"}) as server:
        assert server.url.startswith("http://[::1]:")
        assert not server.url.endswith(":0")
        assert (await client.get(server, "/health")).status == 200


def test_a_taken_port_is_an_error_that_names_it():
    (taken,) = open_sockets("127.0.0.1", 0)
    taken.listen()
    with taken:
        port = taken.getsockname()[1]
        assert url_of(taken) == f"http://127.0.0.1:{port}"
        with pytest.raises(ConfigError, match=str(port)):
            open_sockets("127.0.0.1", port)


def test_an_address_that_does_not_exist_is_an_error_that_names_it():
    with pytest.raises(ConfigError, match=r"203\.0\.113\.7"):
        open_sockets("203.0.113.7", 0)


def test_other_machines_may_reach_the_server_only_with_a_key_or_insecure():
    def settings(**fields):
        return FakeServer(settings=fields).settings

    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.9"):
        check_exposure(settings(host=host))
    for host in ("0.0.0.0", "::", "192.168.1.4", "example.org"):
        with pytest.raises(ConfigError, match="--api-key"):
            check_exposure(settings(host=host))
        check_exposure(settings(host=host, api_key=("k",)))
        check_exposure(settings(host=host, insecure=True))
