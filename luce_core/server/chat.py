"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from luce_core.server.background import in_background
from luce_core.server.body import read_object
from luce_core.server.chunks import ChatChunks, ReplyHead, call_object
from luce_core.server.generation import (
    Answer,
    Choice,
    ReadyPrompt,
    collect,
    open_choices,
    running_usage,
    send_whole,
)
from luce_core.server.logprobs import ChatSheet
from luce_core.server.schema import ChatBody, ChatInput, parse_chat
from luce_core.server.served_model import ServedModel
from luce_core.server.state import STATE, serving_of
from luce_core.server.streaming import StreamedReply
from luce_core.server.text_limit import refuse_hopeless
from luce_core.server.usage import sum_usage, timings_object
from luce_core.text.prompt import Prompt
from luce_core.text.stop_strings import StopSet


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """One chat, `n` answers. Refusals come before any header; see `open_choices`."""
    serving = serving_of(request)
    settings = request.app[STATE].settings
    model = serving.model
    values = await read_object(request)
    size = request.content_length
    body = await in_background(
        size,
        lambda: parse_chat(
            values, settings, vocab_size=model.vocab_size, takes_tools=model.text.takes_tools
        ),
    )
    params = body.params
    model.check_name(params.model, strict=settings.strict_model_name)

    async def prepare() -> Sequence[ReadyPrompt]:
        return [await in_background(size, lambda: _prepare(model, body))]

    choices = await open_choices(request, serving, params, 1, prepare)
    reply_id = f"chatcmpl-{secrets.token_hex(12)}"
    if not params.stream:
        wants = params.sampling.logprobs is not None
        sheet = (lambda: ChatSheet(model.text.tokenizer)) if wants else None
        answers = await collect(serving, choices, sheet)
        head = ReplyHead(reply_id, "chat.completion", int(time.time()), model.name)
        reply = _whole_reply(body, head, choices, answers)
        return await send_whole(request, serving, reply)
    head = ReplyHead(reply_id, "chat.completion.chunk", int(time.time()), model.name)
    encoders = [
        ChatChunks(
            head,
            choice.index,
            model.text.tokenizer,
            running=running_usage(choice.stream) if params.continuous_usage else None,
            wants_logprobs=params.sampling.logprobs is not None,
        )
        for choice in choices
    ]
    return await StreamedReply(request, serving, params, head, choices, encoders).run()


def render(model: ServedModel, chat: ChatInput) -> Prompt:
    tools = [tool.spec for tool in chat.calls.tools]
    refuse_hopeless(model, chat.messages, "messages")
    refuse_hopeless(model, tools, "tools")
    return model.text.chat_format.render(
        chat.messages,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.continue_final_message,
        tools=tools,
        **chat.template_kwargs,
    )


def _prepare(model: ServedModel, body: ChatBody) -> ReadyPrompt:
    prompt = render(model, body.chat)
    stops = StopSet(body.params.stops)
    calls = body.chat.calls
    return ReadyPrompt(
        tokens=tuple(model.text.tokenizer.encode_prompt(prompt)),
        pipeline=lambda: model.text.chat_pipeline(
            prompt,
            stops,
            min_tokens=body.params.sampling.min_tokens,
            tools=calls.tools,
            most_calls=calls.most_calls,
        ),
        param="messages",
    )


def _whole_reply(
    body: ChatBody,
    head: ReplyHead,
    choices: Sequence[Choice],
    answers: Sequence[Answer],
) -> dict[str, Any]:
    entries = []
    for choice, answer in zip(choices, answers, strict=True):
        message: dict[str, Any] = {"role": "assistant", "content": answer.content}
        if answer.calls:
            message["content"] = answer.content or None
            message["tool_calls"] = [
                call_object(call.name, call.arguments) for call in answer.calls
            ]
        if answer.reasoning:
            message["reasoning_content"] = message["reasoning"] = answer.reasoning
        entries.append(
            {
                "index": choice.index,
                "message": message,
                "logprobs": answer.logprobs,
                "finish_reason": answer.finish,
            }
        )
    usage = sum_usage(
        [answer.usage for answer in answers],
        [choice.stream.pipeline.reasoning_tokens for choice in choices],
        body.params.n,
    )
    timings = timings_object(choices[0].stream.request, answers[0].usage)
    return head.with_fields(choices=entries, usage=usage, timings=timings)
