"""The application: routes and middleware. It can serve before the model is loaded."""

from __future__ import annotations

from aiohttp import web

from luce_core.server import chat, completions, middleware, models, status, tokenize
from luce_core.server.state import STATE, ServerState


def build_app(state: ServerState) -> web.Application:
    """All routes over one state. While `state.serving` is None they answer 503 `loading`."""
    app = web.Application(
        client_max_size=state.settings.max_body_bytes,
        middlewares=(middleware.name_request, middleware.answer_errors, middleware.guard),
    )
    app[STATE] = state
    app.on_response_prepare.append(middleware.add_headers)
    app.router.add_post("/v1/chat/completions", chat.create_chat_completion)
    app.router.add_post("/v1/completions", completions.create_completion)
    app.router.add_get("/v1/models", models.list_models)
    app.router.add_get("/v1/models/{name:.+}", models.show_model)
    app.router.add_post("/tokenize", tokenize.tokenize)
    app.router.add_post("/detokenize", tokenize.detokenize)
    app.router.add_get("/health", status.health)
    app.router.add_get("/props", status.props)
    app.router.add_get("/slots", status.slots)
    app.router.add_get("/metrics", status.metrics)
    return app
