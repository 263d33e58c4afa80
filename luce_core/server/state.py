"""What the handlers share: the settings, and the model once it is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from luce_core.errors import Overloaded
from luce_core.runtime.arrivals import Arrivals
from luce_core.runtime.runtime import Runtime
from luce_core.server.auth import ApiKeys
from luce_core.server.metrics import Metrics
from luce_core.server.origins import CorsRule, HostRule
from luce_core.server.served_model import ServedModel
from luce_core.settings import Settings


@dataclass(frozen=True, slots=True)
class Serving:
    """A started runtime, its model, and the metrics that observe its hub."""

    runtime: Runtime
    model: ServedModel
    metrics: Metrics


class ServerState:
    """One per application. `serving` is None while the model loads and is set once."""

    def __init__(self, settings: Settings, serving: Serving | None = None) -> None:
        self.settings = settings
        self.serving = serving
        self.keys = ApiKeys.from_settings(settings)
        self.hosts = HostRule(settings.host, settings.allowed_host)
        self.cors = CorsRule(settings.cors_origin)
        self.arrivals = Arrivals()


STATE = web.AppKey("luce_state", ServerState)
# The client's X-Request-Id, or ours.
CLIENT_ID = web.RequestKey("luce_client_id", str)


def serving_of(request: web.Request) -> Serving:
    """Overloaded (503) while the model is loading."""
    serving = request.app[STATE].serving
    if serving is None:
        raise Overloaded("the model is loading", code="loading", status=503, retry_after_s=5)
    return serving
