"""GET /health, /props, /slots and /metrics: what operators and routers ask."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from aiohttp import web

from luce_core.errors import Overloaded
from luce_core.request import SamplingParams
from luce_core.server.errors import error_response, json_response
from luce_core.server.exposition import MetricsPage
from luce_core.server.params import MAX_LOGPROBS
from luce_core.server.served_model import ServedModel
from luce_core.server.state import STATE, Serving, serving_of
from luce_core.settings import Settings

PROPS_VERSION = 1

_TROUBLE = {
    "loading": "the model is loading",
    "engine_dead": "the engine is lost; the server must be restarted",
    "engine_stalled": "requests are pending and no step has finished for too long",
    "draining": "the server is shutting down",
}


async def health(request: web.Request) -> web.Response:
    """200 while requests are served and steps make progress, else 503 with the reason as code."""
    serving = request.app[STATE].serving
    trouble = "loading" if serving is None else serving.runtime.trouble()
    if trouble is None:
        return json_response({"status": "ok"})
    message = _TROUBLE.get(trouble, trouble)
    return error_response(503, message, code=trouble, headers={"Retry-After": "5"})


async def props(request: web.Request) -> web.Response:
    """What this server is and where its limits are; `version` grows when a field changes."""
    serving = serving_of(request)
    return json_response(_props(serving, request.app))


def _props(serving: Serving, app: web.Application) -> dict[str, Any]:
    model, runtime = serving.model, serving.runtime
    settings = app[STATE].settings
    capabilities = runtime.engine.capabilities
    snapshot = runtime.loop.snapshot
    chat = model.text.chat_format
    tokenizer = model.text.tokenizer
    return {
        "version": PROPS_VERSION,
        "build": f"luce-core {importlib.metadata.version('luce-core')}",
        "model": model.name,
        "model_aliases": list(model.names[1:]),
        "engine": model.engine,
        "engine_facts": dict(model.engine_facts),
        "device": model.device,
        "meta": dict(model.meta),
        "default_generation_settings": {
            "n_ctx": model.max_context,
            "params": _default_params(),
        },
        "total_slots": capabilities.max_slots,
        "chat_template": getattr(chat, "template", None),
        "chat_template_source": chat.source,
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "eos_token_ids": sorted(tokenizer.eos_ids),
        "add_bos": tokenizer.add_bos,
        "kv_pool": {
            "blocks": snapshot.total_blocks,
            "block_size": capabilities.block_size,
            "tokens": snapshot.total_blocks * capabilities.block_size,
            "explanation": model.pool,
        },
        "speculation": {"max_draft": capabilities.max_draft},
        "prefix_cache": {"enabled": False, "reason": "this version has none"},
        "op_providers": list(model.providers),
        "step_modes": list(model.modes),
        "prefill_rows_beside_decoders": model.pacing,
        "limits": _limits(settings, model),
        "warnings": [*model.warnings, *model.text.warnings],
        "routes": sorted({f"{r.method} {r.resource.canonical}" for r in app.router.routes()
                          if r.resource is not None and r.method != "HEAD"}),
    }  # fmt: skip


def _default_params() -> dict[str, Any]:
    params = SamplingParams()
    return {
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
    }


def _limits(settings: Settings, model: ServedModel) -> dict[str, int]:
    return {
        "max_context": model.max_context,
        "max_queue": settings.max_queue,
        "max_body_bytes": settings.max_body_bytes,
        "max_body_values": settings.max_body_values,
        "max_n": settings.max_n,
        "max_stops": settings.max_stops,
        "max_stop_bytes": settings.max_stop_bytes,
        "max_logit_bias": settings.max_logit_bias,
        "max_prompts": settings.max_prompts,
        "max_logprobs": MAX_LOGPROBS,
        "min_tokens": settings.min_tokens,
        "reader_buffer_bytes": settings.reader_buffer_bytes,
    }


async def slots(request: web.Request) -> web.Response:
    """Every slot, and what it does; 503 with `?fail_on_no_slot=1` if none is free."""
    runtime = serving_of(request).runtime
    snapshot = runtime.loop.snapshot
    max_slots = runtime.engine.capabilities.max_slots
    if request.query.get("fail_on_no_slot") == "1" and snapshot.running >= max_slots:
        raise Overloaded("no slot is free", code="no_slot", status=503)
    busy = {slot.slot_id: slot for slot in snapshot.slots}
    views = []
    for slot_id in range(max_slots):
        slot = busy.get(slot_id)
        view: dict[str, Any] = {"id": slot_id, "is_processing": slot is not None}
        if slot is not None:
            view |= {key: value for key, value in slot._asdict().items() if key != "slot_id"}
        views.append(view)
    return json_response(views)


async def metrics(request: web.Request) -> web.Response:
    serving = serving_of(request)
    page = MetricsPage(serving.runtime, serving.metrics, serving.model.name)
    body, content_type = page.render(request.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": content_type})
