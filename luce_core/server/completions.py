"""POST /v1/completions: raw prompts, as text or as token ids."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from luce_core.server.background import in_background
from luce_core.server.body import read_object
from luce_core.server.chunks import ReplyHead, TextChunks
from luce_core.server.echo import echo_only
from luce_core.server.generation import (
    Answer,
    Choice,
    ReadyPrompt,
    collect,
    open_choices,
    running_usage,
    send_whole,
)
from luce_core.server.logprobs import TextSheet
from luce_core.server.schema import CompletionBody, parse_completion
from luce_core.server.served_model import ServedModel
from luce_core.server.state import STATE, serving_of
from luce_core.server.streaming import StreamedReply
from luce_core.server.text_limit import refuse_hopeless
from luce_core.server.usage import sum_usage, timings_object
from luce_core.text.stop_strings import StopSet

_OBJECT = "text_completion"


async def create_completion(request: web.Request) -> web.StreamResponse:
    """`n` answers to each prompt; choice i answers prompt i // n."""
    serving = serving_of(request)
    settings = request.app[STATE].settings
    model = serving.model
    values = await read_object(request)
    size = request.content_length
    body = await in_background(
        size, lambda: parse_completion(values, settings, vocab_size=model.vocab_size)
    )
    params = body.params
    model.check_name(params.model, strict=settings.strict_model_name)
    head = ReplyHead(f"cmpl-{secrets.token_hex(12)}", _OBJECT, int(time.time()), model.name)

    async def prepare() -> Sequence[ReadyPrompt]:
        return await in_background(size, lambda: _prepare(model, body))

    if params.max_tokens == 0:
        return await echo_only(request, params, head, await prepare())
    choices = await open_choices(request, serving, params, len(body.prompts), prepare)
    if not params.stream:
        wants = params.sampling.logprobs is not None
        sheet = (lambda: TextSheet(model.text.tokenizer)) if wants else None
        answers = await collect(serving, choices, sheet)
        reply = _whole_reply(body, head, choices, answers)
        return await send_whole(request, serving, reply)
    encoders = [
        TextChunks(
            head,
            choice.index,
            model.text.tokenizer,
            running=running_usage(choice.stream) if params.continuous_usage else None,
            wants_logprobs=params.sampling.logprobs is not None,
        )
        for choice in choices
    ]
    return await StreamedReply(request, serving, params, head, choices, encoders).run()


def _prepare(model: ServedModel, body: CompletionBody) -> list[ReadyPrompt]:
    tokenizer = model.text.tokenizer
    stops = StopSet(body.params.stops)
    min_tokens = body.params.sampling.min_tokens
    ready = []
    for prompt in body.prompts:
        if isinstance(prompt, str):
            refuse_hopeless(model, prompt, "prompt")
            tokens = tuple(tokenizer.encode(prompt, parse_special=True, add_special=True))
            echo = prompt
        else:
            tokens = prompt
            echo = tokenizer.decode(prompt) if body.echo else ""
        ready.append(
            ReadyPrompt(
                tokens=tokens,
                pipeline=lambda: model.text.plain_pipeline(stops, min_tokens=min_tokens),
                param="prompt",
                echo=echo if body.echo else "",
            )
        )
    return ready


def _whole_reply(
    body: CompletionBody,
    head: ReplyHead,
    choices: Sequence[Choice],
    answers: Sequence[Answer],
) -> dict[str, Any]:
    entries = [
        {
            "index": choice.index,
            "text": choice.prompt.echo + answer.content,
            "logprobs": answer.logprobs,
            "finish_reason": answer.finish,
        }
        for choice, answer in zip(choices, answers, strict=True)
    ]
    usage = sum_usage([answer.usage for answer in answers], [0], body.params.n)
    timings = timings_object(choices[0].stream.request, answers[0].usage)
    return head.with_fields(choices=entries, usage=usage, timings=timings)
