"""Servers to measure: the real application around a fake engine, and one that answers as told."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest
from aiohttp import web

from luce_core.bench.options import BenchOptions, parse_options

_SHORT = {"--levels": "1", "--tokens": "8", "--repeats": "1", "--warmup": "0", "--seed": "7"}


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in os.environ:
        if variable.startswith(("LUCE_", "DFLASH_")):
            monkeypatch.delenv(variable)


@pytest.fixture
def options() -> Callable[..., BenchOptions]:
    """Options from words; one short measurement of one client unless they say otherwise."""

    def make(*words: object) -> BenchOptions:
        given = list(map(str, words))
        for flag, value in _SHORT.items():
            if flag not in given:
                given += [flag, value]
        return parse_options(given)

    return make


class Scripted:
    """Answers each request with the same events; keeps the bodies and the clients' ports."""

    def __init__(self) -> None:
        self.url = ""
        self.lines: list[bytes] = []
        self.status = 200
        self.location = ""
        self.pause_s = 0.0
        self.bodies: list[dict[str, Any]] = []
        self.ports: list[int] = []
        self.keys: list[str | None] = []

    def say(self, *events: Any) -> None:
        """What every answer streams: values become JSON, bytes stay as they are."""
        self.lines = [e if isinstance(e, bytes) else orjson.dumps(e) for e in events]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        self.ports.append(request.transport.get_extra_info("peername")[1])
        self.keys.append(request.headers.get("Authorization"))
        self.bodies.append(orjson.loads(await request.read()))
        if self.status != 200:
            headers = {"Location": self.location} if self.location else None
            return web.Response(status=self.status, text="no", headers=headers)
        reply = web.StreamResponse()
        await reply.prepare(request)
        for line in self.lines:
            await reply.write(b"data: " + line + b"\n\n")
            await asyncio.sleep(self.pause_s)
        return reply


@pytest.fixture
async def scripted() -> AsyncIterator[Scripted]:
    server = Scripted()
    app = web.Application()
    app.router.add_post("/v1/completions", server.answer)
    app.router.add_post("/v1/chat/completions", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    server.url = f"http://127.0.0.1:{port}"
    yield server
    await runner.cleanup()
