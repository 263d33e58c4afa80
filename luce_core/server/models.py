"""GET /v1/models and /v1/models/{id}: names, context length, facts of the file."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from luce_core.errors import RequestError
from luce_core.server.errors import json_response
from luce_core.server.served_model import ServedModel
from luce_core.server.state import serving_of


async def list_models(request: web.Request) -> web.Response:
    model = serving_of(request).model
    return json_response({"object": "list", "data": [_entry(model, n) for n in model.names]})


async def show_model(request: web.Request) -> web.Response:
    model = serving_of(request).model
    name = request.match_info["name"]
    if name not in model.names:
        raise RequestError(
            f"model {name[:100]!r} is not served here; served: {', '.join(model.names)}",
            param="model",
            code="model_not_found",
            status=404,
        )
    return json_response(_entry(model, name))


def _entry(model: ServedModel, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "luce",
        "root": model.name,
        "parent": None,
        # vLLM's and LM Studio's names for what clients look up.
        "max_model_len": model.max_context,
        "context_length": model.max_context,
        "max_context_length": model.max_context,
        "meta": {"n_ctx": model.max_context, "n_vocab": model.vocab_size, **model.meta},
    }
