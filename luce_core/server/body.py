"""Reading a request body: size, time, JSON."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from luce_core.errors import RequestError
from luce_core.server.background import in_background
from luce_core.server.large_body import parse_json
from luce_core.server.state import STATE

_BODY_TIMEOUT_S = 120.0
_LONG_BYTES = 256 << 10
# While others are answered, a body gets a small part of a core. A quarter of a megabyte costs a
# millisecond or two to take in, client and kernel included; what reading costs depends on the text,
# so the thread rests so many times as long as it has worked.
_ARRIVAL_REST_S = 0.096
_RESTS = 20


async def read_object(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object; see `parse_json`. Long bodies are parsed off the loop."""
    state = request.app[STATE]
    settings = state.settings

    def is_busy() -> bool:
        return state.serving is not None and state.serving.runtime.hub.unfinished > 0

    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            data = await _read(request, settings.max_body_bytes, is_busy)
    except TimeoutError:
        raise RequestError(
            "the request body did not arrive in time", code="body_timeout", status=408
        ) from None
    finally:
        state.arrivals.end(request.protocol)

    def parse() -> Any:
        rest = _Rest(is_busy)
        return parse_json(data, most_values=settings.max_body_values, rest=rest.take)

    value = await in_background(len(data), parse)
    if not isinstance(value, dict):
        raise RequestError("the request body must be a JSON object", code="invalid_json")
    return value


class _Rest:
    """Rests of a thread, begun on that thread."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self._worked_s = time.thread_time()

    def take(self) -> None:
        worked_s = time.thread_time()
        time.sleep(_RESTS * (worked_s - self._worked_s) if self._is_busy() else 0)
        self._worked_s = worked_s


async def _read(request: web.Request, most_bytes: int, is_busy: Callable[[], bool]) -> bytearray:
    """All of the body. aiohttp's own `read` would copy it once more in one go.

    A long one is taken at a pace that leaves cores and lock to the steps most of the time.
    """
    announced = request.content_length or 0
    data = bytearray()
    while announced <= most_bytes and len(data) <= most_bytes:
        chunk = await request.content.readany()
        if not chunk:
            return data
        data += chunk
        if len(data) > _LONG_BYTES:
            await asyncio.sleep(_ARRIVAL_REST_S if is_busy() else 0)
    raise RequestError(
        f"the request body has {max(announced, len(data))} bytes, the limit is {most_bytes}",
        code="body_too_large",
        status=413,
    )
