"""Reading a request body: size, time, JSON."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from aiohttp import web

from luce_core.errors import RequestError
from luce_core.server.state import STATE

_BODY_TIMEOUT_S = 120.0


async def read_object(request: web.Request, most_bytes: int) -> dict[str, Any]:
    """The body as a JSON object. orjson refuses NaN, Infinity, deep nesting and bad UTF-8."""
    if request.content_length is not None and request.content_length > most_bytes:
        raise RequestError(
            f"the request body has {request.content_length} bytes, the limit is {most_bytes}",
            code="body_too_large",
            status=413,
        )
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            data = await request.read()
    except TimeoutError:
        raise RequestError(
            "the request body did not arrive in time", code="body_timeout", status=408
        ) from None
    finally:
        request.app[STATE].arrivals.end(request.protocol)
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RequestError(
            f"the request body is not valid JSON: {error}", code="invalid_json"
        ) from error
    if not isinstance(value, dict):
        raise RequestError("the request body must be a JSON object", code="invalid_json")
    return value
