"""Errors as clients see them: OpenAI's JSON shape on every route, and nothing from the inside."""

from __future__ import annotations

import re
from typing import Any

import orjson
from aiohttp import web

from luce_core.errors import Overloaded, RequestError

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_TYPES[503] = "unavailable_error"
_CODED = re.compile(r"([a-z][a-z0-9_]{2,40}): (.*)", re.DOTALL)
# Failures that may not happen again elsewhere or later; the others are 500.
_STATUS = {"admission_failed": 503, "shutting_down": 503, "engine_dead": 503}
_MAX_REASON_CHARS = 500

JSON = "application/json"


class GenerationFailed(Exception):
    """An accepted request ended with an error: an HTTP error, or an event once headers are out."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message

    @classmethod
    def from_reason(cls, reason: str | None) -> GenerationFailed:
        """What a request's own error says: `code: message`, made for clients."""
        found = _CODED.fullmatch(reason or "")
        if found is None:
            return cls(500, "engine_error", reason or "the engine failed on this request")
        return cls(_STATUS.get(found[1], 500), found[1], found[2][:_MAX_REASON_CHARS])


def error_body(status: int, message: str, *, code: str | None, param: str | None = None) -> bytes:
    """`{"error": {...}}` as JSON."""
    default = "invalid_request_error" if status < 500 else "server_error"
    error = {
        "message": message,
        "type": _TYPES.get(status, default),
        "param": param,
        "code": code,
    }
    return orjson.dumps({"error": error}, default=str)


def error_response(
    status: int,
    message: str,
    *,
    code: str | None,
    param: str | None = None,
    headers: dict[str, str] | None = None,
) -> web.Response:
    return web.Response(
        status=status,
        body=error_body(status, message, code=code, param=param),
        content_type=JSON,
        headers=headers,
    )


def refusal_response(error: RequestError) -> web.Response:
    return error_response(error.status, error.message, code=error.code, param=error.param)


def overload_response(error: Overloaded) -> web.Response:
    headers = {"Retry-After": str(error.retry_after_s)}
    return error_response(error.status, error.message, code=error.code, headers=headers)


def failure_response(error: GenerationFailed) -> web.Response:
    headers = {"Retry-After": "1"} if error.status == 503 else None
    return error_response(error.status, error.message, code=error.code, headers=headers)


def http_response(error: web.HTTPException) -> web.Response:
    """aiohttp's own refusals (unknown route, wrong method, large body) in our shape."""
    headers = {}
    match error:
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            message = f"method {error.method} is not allowed here; use {allowed}"
            code = "method_not_allowed"
            headers["Allow"] = allowed
        case web.HTTPNotFound():
            message, code = "there is no such route on this server", "not_found"
        case web.HTTPRequestEntityTooLarge():
            message, code = "the request body is too large", "body_too_large"
        case _:
            message, code = error.reason, "http_error"
    return error_response(error.status, message, code=code, headers=headers)


def json_response(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type=JSON)
