"""Server-sent events: one response that stays open, and what may be written into it."""

from __future__ import annotations

import orjson
from aiohttp import web

from luce_core.server.errors import GenerationFailed, error_body

_PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


def event(data: object) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


class EventStream:
    """Headers go out in `open`. A slow client makes `write` wait, here and nowhere else."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(headers=_HEADERS)

    async def open(self) -> None:
        await self.response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        await self.response.write(data)

    async def ping(self) -> None:
        await self.write(_PING)

    async def done(self) -> None:
        await self.write(DONE)

    async def fail(self, error: GenerationFailed) -> None:
        """The error as the last event; the connection closes without the done mark."""
        self.response.force_close()
        body = error_body(error.status, error.message, code=error.code)
        await self.write(b"data: " + body + b"\n\n")

    def abort(self) -> None:
        """Drop the connection and what is buffered for it, so that a waiting `write` ends."""
        if self._request.transport is not None:
            self._request.transport.abort()
