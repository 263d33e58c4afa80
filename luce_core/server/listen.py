"""Sockets and the HTTP protocol around the application: where it listens, and its URLs."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from luce_core.errors import ConfigError
from luce_core.runtime.arrivals import Arrivals
from luce_core.server.auth import ApiKeys
from luce_core.server.errors import JSON, error_body
from luce_core.server.origins import is_loopback
from luce_core.server.state import STATE
from luce_core.settings import Settings

log = logging.getLogger(__name__)

_MAX_LINE_BYTES = 8 << 10
_MAX_HEADER_BYTES = 16 << 10
_BACKLOG = 1024
_PORT_TRIES = 10
_SHUTDOWN_S = 5.0


def check_exposure(settings: Settings) -> None:
    """ConfigError for an address that others can reach, without a key and without --insecure."""
    if is_loopback(settings.host) or settings.insecure or ApiKeys.from_settings(settings):
        return
    raise ConfigError(
        f"--host {settings.host} can be reached from other machines: give --api-key or "
        "--api-key-file, or --insecure if that is meant"
    )


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Listening sockets; `localhost` on both address families, on one port. ConfigError if taken.

    Port 0 takes any free port.
    """
    hosts = ["127.0.0.1", "::1"] if host.lower() == "localhost" else [host]
    tries = _PORT_TRIES if port == 0 and len(hosts) > 1 else 1
    for attempt in range(tries):
        opened: list[socket.socket] = []
        try:
            for address in hosts:
                wanted = opened[0].getsockname()[1] if opened else port
                if (found := _bind(address, wanted, optional=bool(opened))) is not None:
                    opened.append(found)
            return opened
        except OSError as error:
            for found in opened:
                found.close()
            # The free port of one family may be taken in the other.
            if attempt + 1 == tries:
                reason = error.strerror or str(error)
                raise ConfigError(f"cannot listen on {host} port {port}: {reason}") from error
    raise AssertionError("unreachable")


def _bind(host: str, port: int, *, optional: bool) -> socket.socket | None:
    """A listening socket; None if `optional` and the machine lacks the address family."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = infos[0]
    try:
        found = socket.socket(family, kind, protocol)
    except OSError:
        if optional:
            return None
        raise
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        found.bind(address)
        found.setblocking(False)
    except OSError as error:
        found.close()
        if optional and error.errno in (99, 97, 49, 47):  # no such address or family here
            return None
        raise
    return found


def url_of(bound: socket.socket) -> str:
    """The URL of a listening socket; IPv6 addresses in brackets, wildcards as loopback."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Connection(RequestHandler):
    """aiohttp's connection, with what it says of broken HTTP in our error shape."""

    __slots__ = ("_arrivals",)

    def __init__(self, manager: web.Server, arrivals: Arrivals, **options: Any) -> None:
        super().__init__(manager, **options)
        self._arrivals = arrivals

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._arrivals.begin(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._arrivals.end(self)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        log.debug("broken request", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the reply has begun, so the error cannot be sent")
        text = "the request is not valid HTTP" if status < 500 else "internal error"
        code = "invalid_http" if status < 500 else "internal_error"
        response = web.Response(
            status=status, body=error_body(status, text, code=code), content_type=JSON
        )
        response.force_close()
        return response


class HttpServer:
    """A started application on its sockets. `start` and `close` run on the asyncio thread."""

    def __init__(self, app: web.Application, settings: Settings) -> None:
        self._options: dict[str, Any] = {
            "keepalive_timeout": settings.keepalive_timeout,
            "access_log": None,
            "max_line_size": _MAX_LINE_BYTES,
            "max_field_size": _MAX_HEADER_BYTES,
        }
        # Without handler_cancellation a client that leaves would not end its generation.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S, **self._options
        )
        self._app = app
        self._settings = settings
        self._servers: list[asyncio.Server] = []
        self.urls: tuple[str, ...] = ()

    async def start(self) -> None:
        """Listen; ConfigError if the address is not to be had or must not be exposed."""
        check_exposure(self._settings)
        sockets = open_sockets(self._settings.host, self._settings.port)
        await self._runner.setup()
        manager = self._runner.server
        assert manager is not None
        loop = asyncio.get_running_loop()
        arrivals = self._app[STATE].arrivals

        def connect() -> RequestHandler:
            return _Connection(manager, arrivals, loop=loop, **self._options)

        for bound in sockets:
            self._servers.append(await loop.create_server(connect, sock=bound, backlog=_BACKLOG))
        self.urls = tuple(url_of(bound) for bound in sockets)

    async def close(self) -> None:
        """Stop listening, then end the connections; handlers get a few seconds."""
        for server in self._servers:
            server.close()
        await self._runner.cleanup()
