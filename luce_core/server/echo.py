"""Completions with `echo` and max_tokens 0: the prompt comes back, nothing is generated."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from luce_core.plan import Usage
from luce_core.server.chunks import ReplyHead
from luce_core.server.errors import json_response
from luce_core.server.generation import ReadyPrompt
from luce_core.server.params import GenerationParams
from luce_core.server.sse import EventStream, event
from luce_core.server.usage import sum_usage


async def echo_only(
    request: web.Request,
    params: GenerationParams,
    head: ReplyHead,
    prompts: Sequence[ReadyPrompt],
) -> web.StreamResponse:
    echoed = [prompt for prompt in prompts for _ in range(params.n)]
    choices = [
        {"index": index, "text": prompt.echo, "logprobs": None, "finish_reason": "length"}
        for index, prompt in enumerate(echoed)
    ]
    usage = sum_usage([Usage(len(prompt.tokens), 0) for prompt in echoed], [0], params.n)
    if not params.stream:
        return json_response(head.with_fields(choices=choices, usage=usage))
    out = EventStream(request)
    await out.open()
    for choice in choices:
        await out.write(event(head.with_fields(choices=[choice])))
    if params.include_usage:
        await out.write(event(head.with_fields(choices=[], usage=usage)))
    await out.done()
    return out.response
