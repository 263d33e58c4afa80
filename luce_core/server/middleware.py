"""What happens around every handler: request ids, Host, CORS, keys, and errors in one shape."""

from __future__ import annotations

import logging
import re
import secrets

from aiohttp import web
from aiohttp.typedefs import Handler

from luce_core.errors import Overloaded, RequestError
from luce_core.server.errors import (
    GenerationFailed,
    error_response,
    failure_response,
    http_response,
    overload_response,
    refusal_response,
)
from luce_core.server.state import CLIENT_ID, STATE

log = logging.getLogger(__name__)

REQUEST_ID_HEADER = "X-Request-Id"
_CLIENT_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_OPEN_ROUTES = frozenset({"/health"})


@web.middleware
async def name_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Outermost: the client's request id if it is fit to be echoed, else ours.

    `read_object` says when the body is read; here is where that ends for everybody else.
    """
    sent = request.headers.get(REQUEST_ID_HEADER, "")
    fits = _CLIENT_ID.fullmatch(sent) is not None
    request[CLIENT_ID] = sent if fits else f"req-{secrets.token_hex(8)}"
    arrivals = request.app[STATE].arrivals
    if request.can_read_body:
        arrivals.begin(request.protocol)
    else:
        arrivals.end(request.protocol)
    try:
        return await handler(request)
    finally:
        arrivals.end(request.protocol)


async def add_headers(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Signal `on_response_prepare`: reaches streamed replies and errors alike."""
    client_id = request.get(CLIENT_ID)
    if client_id is not None:
        response.headers[REQUEST_ID_HEADER] = client_id
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Server"] = "luce"
    origin = request.headers.get("Origin")
    if origin is not None and isinstance(request, web.Request):
        cors = request.app[STATE].cors
        if cors.allows(origin):
            response.headers.update(cors.headers(origin))


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every refusal and failure in OpenAI's shape; the text of other exceptions stays here."""
    try:
        return await handler(request)
    except RequestError as error:
        return refusal_response(error)
    except Overloaded as error:
        return overload_response(error)
    except GenerationFailed as error:
        return failure_response(error)
    except web.HTTPException as error:
        return http_response(error)
    except ConnectionError:
        raise
    except Exception:
        log.exception("request %s failed", request[CLIENT_ID])
        return error_response(500, "internal error", code="internal_error")


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Host, then CORS, then the key; /health needs no key."""
    state = request.app[STATE]
    state.hosts.check(request.headers)
    origin = request.headers.get("Origin")
    if origin is not None:
        wanted = request.headers.get("Access-Control-Request-Method")
        if request.method == "OPTIONS" and wanted is not None and state.cors.allows(origin):
            fields = request.headers.get("Access-Control-Request-Headers", "")
            return web.Response(status=204, headers=state.cors.preflight_headers(origin, fields))
        if request.method == "POST":
            state.cors.check_simple_post(origin, request.host, request.content_type)
    if request.path not in _OPEN_ROUTES:
        state.keys.check(request.headers)
    return await handler(request)
