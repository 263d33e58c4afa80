"""Reading a request body: size, time, JSON."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from luce_core.errors import RequestError
from luce_core.server.background import in_background
from luce_core.server.large_body import parse_json
from luce_core.server.state import STATE

_BODY_TIMEOUT_S = 120.0
_LONG_BYTES = 256 << 10
_NAP_S = 0.003


async def read_object(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object; see `parse_json`. Long bodies are parsed off the loop."""
    state = request.app[STATE]
    settings = state.settings
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            data = await _read(request, settings.max_body_bytes)
    except TimeoutError:
        raise RequestError(
            "the request body did not arrive in time", code="body_timeout", status=408
        ) from None
    finally:
        state.arrivals.end(request.protocol)
    value = await in_background(
        len(data), lambda: parse_json(data, most_values=settings.max_body_values)
    )
    if not isinstance(value, dict):
        raise RequestError("the request body must be a JSON object", code="invalid_json")
    return value


async def _read(request: web.Request, most_bytes: int) -> bytearray:
    """All of the body. aiohttp's own `read` would copy it once more in one go.

    A long one is taken at a pace that leaves the interpreter's lock to the steps most of the time.
    """
    announced = request.content_length or 0
    data = bytearray()
    while announced <= most_bytes and len(data) <= most_bytes:
        chunk = await request.content.readany()
        if not chunk:
            return data
        data += chunk
        if len(data) > _LONG_BYTES:
            await asyncio.sleep(_NAP_S)
    raise RequestError(
        f"the request body has {max(announced, len(data))} bytes, the limit is {most_bytes}",
        code="body_too_large",
        status=413,
    )
