"""Bodies of 20 MB, of every shape, while others are being answered."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import pytest

from luce_core.testing.fake_engine import FakeEngine, HashMind
from luce_core.testing.fake_server import FakeServer

SIZE = 20 << 20


def filled(unit: bytes, separator: bytes = b"") -> bytes:
    return separator.join([unit] * (SIZE // len(unit + separator)))


MESSAGE = b'{"role":"user","content":"hi"}'
SHAPES = {
    "text": (b'{"messages":[{"role":"user","content":"' + filled(b"word ") + b'"}]}', 400),
    "escapes": (b'{"messages":[{"role":"user","content":"' + filled(b"\\u00e9\\n") + b'"}]}', 400),
    "messages": (b'{"messages":[' + filled(MESSAGE, b",") + b"]}", 413),
    "numbers": (b'{"prompt":[' + filled(b"97", b",") + b"]}", 413),
    "lists": (b'{"messages":[' + filled(b"[]", b",") + b"]}", 413),
    "nested": (b'{"messages":' + b"[" * (SIZE // 2) + b"]" * (SIZE // 2) + b"}", 413),
    "keys": (b'{"logit_bias":{' + filled(b'"1":1', b",") + b"}}", 413),
    "quotes": (b'{"messages":"' + filled(b'"') + b'"}', 400),
}


def post(port: int, body: bytes) -> tuple[int, str]:
    """Status and error code, over a plain socket, which waits without the interpreter's lock."""
    path = "/v1/completions" if body.startswith(b'{"prompt"') else "/v1/chat/completions"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(head.encode())
        sock.sendall(body)
        reply = b""
        while piece := sock.recv(1 << 16):
            reply += piece
    top, _, text = reply.partition(b"\r\n\r\n")
    return int(top.split()[1]), json.loads(text)["error"]["code"]


@pytest.mark.parametrize("shape", SHAPES)
async def test_steps_go_on_while_a_20_mb_body_is_read_and_refused(shape, client) -> None:
    body, status = SHAPES[shape]
    engine = FakeEngine(HashMind(), step_ms=2, max_context=1 << 16)
    async with FakeServer(engine, pool_blocks=1 << 12) as server:
        trace = server.runtime.loop.trace

        async def rate(work) -> tuple[float, object]:
            steps, started = trace.steps, time.monotonic()
            result = await work
            return (trace.steps - steps) / (time.monotonic() - started), result

        running = asyncio.create_task(client.complete(server, "hello", max_tokens=60_000))
        while trace.steps < 20:
            await asyncio.sleep(0.01)
        paces: list[float] = []
        # A busy machine may take the core away for a while, a held lock is held every time.
        while len(paces) < 4 and max(paces, default=0.0) < 0.5:
            before, _ = await rate(asyncio.sleep(0.2))
            during, (found, code) = await rate(asyncio.to_thread(post, server.port, body))
            paces.append(during / before)
            assert found == status
            assert code in ("context_length_exceeded", "body_too_large", "invalid_json")
        running.cancel()
        assert max(paces) > 0.5, paces
        await server.check_leaks()
