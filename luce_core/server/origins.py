"""What browsers may do: Host against DNS rebinding, Origin against foreign pages."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from luce_core.errors import RequestError


def is_loopback(host: str) -> bool:
    """Whether an address or host name reaches this machine only."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class HostRule:
    """On a loopback bind only loopback names are served: a page whose name was rebound to
    127.0.0.1 sends its own name in Host."""

    def __init__(self, bind_host: str, allowed: Iterable[str]) -> None:
        self._checks = is_loopback(bind_host)
        self._allowed = frozenset(host.lower() for host in allowed)

    def check(self, headers: Mapping[str, str]) -> None:
        host_header = headers.get("Host")
        if not self._checks or host_header is None:
            return
        host = _host_of(host_header)
        if not (is_loopback(host) or host in self._allowed or host_header in self._allowed):
            raise RequestError(
                f"Host {host_header[:80]!r} is not served on a loopback address; "
                "allow it with --allowed-host",
                code="host_not_allowed",
                status=403,
            )


def _host_of(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


class CorsRule:
    """Cross-origin pages: none by default, an explicit list otherwise; "*" allows all."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.rstrip("/") for origin in origins)

    def allows(self, origin: str) -> bool:
        return origin in self._origins or "*" in self._origins

    def headers(self, origin: str) -> dict[str, str]:
        """For a response to an allowed origin."""
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": "X-Request-Id, Retry-After",
            "Vary": "Origin",
        }

    def preflight_headers(self, origin: str, wanted: str) -> dict[str, str]:
        return {
            **self.headers(origin),
            "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
            "Access-Control-Allow-Headers": wanted or "Authorization, Content-Type",
            "Access-Control-Max-Age": "600",
        }

    def check_simple_post(self, origin: str, own_host: str, content_type: str) -> None:
        """RequestError (415) for a POST that a foreign page could send without a preflight.

        Without this any page could start generations here, even if it cannot read them.
        """
        if self.allows(origin) or urlsplit(origin).netloc == own_host:
            return
        if content_type != "application/json":
            raise RequestError(
                "requests from another origin must have Content-Type application/json",
                code="content_type",
                status=415,
            )
