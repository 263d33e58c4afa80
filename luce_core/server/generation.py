"""From checked prompts to open streams, and from streams to whole answers: shared by both routes.

Every refusal happens in `open_choices`, before any header is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from luce_core.errors import RequestError
from luce_core.plan import Usage
from luce_core.request import FinishReason, Request, RequestTimes
from luce_core.runtime.token_stream import StreamChunk, TokenStream
from luce_core.server.errors import GenerationFailed, json_response
from luce_core.server.logprobs import LogprobSheet
from luce_core.server.params import GenerationParams
from luce_core.server.state import CLIENT_ID, STATE, Serving
from luce_core.server.usage import usage_object
from luce_core.text.pipeline import CallDelta, TextPipeline, join_calls

_ENDS = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyPrompt:
    """A tokenised prompt; `pipeline` makes the text side of one of its choices."""

    tokens: tuple[int, ...]
    pipeline: Callable[[], TextPipeline]
    param: str
    echo: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One entry of `choices` in a reply."""

    index: int
    prompt: ReadyPrompt
    stream: TokenStream


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole text of a choice that has ended well."""

    content: str
    reasoning: str
    calls: tuple[CallDelta, ...]
    logprobs: dict[str, Any] | None
    finish: str
    usage: Usage


async def open_choices(
    request: web.Request,
    serving: Serving,
    params: GenerationParams,
    prompt_count: int,
    prepare: Callable[[], Awaitable[Sequence[ReadyPrompt]]],
) -> list[Choice]:
    """Reserve room, prepare the prompts, check that they can fit, hand them to the engine thread.

    RequestError or Overloaded if anything is refused; then nothing stays reserved. The caller
    releases every stream.
    """
    hub = serving.runtime.hub
    count = params.n * prompt_count
    _check_capacity(request, serving, params, count)
    hub.reserve(count)
    try:
        prompts = await prepare()
        for prompt in prompts:
            _check_fits(serving, prompt)
        ready = [
            (prompt, _make_request(serving, params, prompt, choice_index), prompt.pipeline())
            for prompt in prompts
            for choice_index in range(params.n)
        ]
    except BaseException:
        hub.unreserve(count)
        raise
    choices = []
    for index, (prompt, made, pipeline) in enumerate(ready):
        serving.metrics.opened(made, request[CLIENT_ID])
        choices.append(Choice(index, prompt, hub.open(made, pipeline)))
    return choices


def _check_capacity(
    request: web.Request, serving: Serving, params: GenerationParams, count: int
) -> None:
    slots = serving.runtime.engine.capabilities.max_slots
    most = slots + request.app[STATE].settings.max_queue
    if count > most:
        raise RequestError(
            f"this call asks for {count} choices in all; the server takes {most} at a time",
            param="n" if params.n > 1 else "prompt",
        )


def _check_fits(serving: Serving, prompt: ReadyPrompt) -> None:
    if not prompt.tokens:
        raise RequestError(f"{prompt.param} has no tokens", param=prompt.param)
    try:
        serving.runtime.scheduler.rule.check(len(prompt.tokens))
    except RequestError as error:
        raise RequestError(error.message, param=prompt.param, code=error.code) from None


def _make_request(
    serving: Serving, params: GenerationParams, prompt: ReadyPrompt, choice_index: int
) -> Request:
    rule = serving.runtime.scheduler.rule
    stop_ids = params.stop_token_ids
    if not params.sampling.ignore_eos:
        stop_ids |= serving.model.text.tokenizer.eos_ids
    return Request(
        id=serving.runtime.hub.next_id(),
        prompt=prompt.tokens,
        params=params.sampling,
        max_tokens=rule.cap_max_tokens(len(prompt.tokens), params.max_tokens),
        stop_ids=stop_ids,
        times=RequestTimes(time.monotonic()),
        choice_index=choice_index,
    )


def check_end(stream: TokenStream, chunk: StreamChunk) -> str:
    """The finish reason for the wire; GenerationFailed if the request did not end well."""
    assert chunk.finish is not None
    if chunk.finish is FinishReason.STOP and stream.pipeline.calls:
        return "tool_calls"
    if chunk.finish in _ENDS:
        return str(chunk.finish)
    raise GenerationFailed.from_reason(chunk.error)


async def collect(
    serving: Serving, choices: Sequence[Choice], make_sheet: Callable[[], LogprobSheet] | None
) -> list[Answer]:
    """All answers, for a reply that is not streamed. Releases the streams.

    `make_sheet` is None if no logprobs were asked for.
    """
    hub = serving.runtime.hub
    readers = [
        asyncio.ensure_future(_collect_one(serving, choice, make_sheet and make_sheet()))
        for choice in choices
    ]
    try:
        return await asyncio.gather(*readers)
    finally:
        for reader in readers:
            reader.cancel()
        for choice in choices:
            hub.release(choice.stream)


async def _collect_one(serving: Serving, choice: Choice, sheet: LogprobSheet | None) -> Answer:
    stream = choice.stream
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[CallDelta] = []
    while True:
        chunk = await stream.read(time.monotonic)
        content.append(chunk.delta.content)
        reasoning.append(chunk.delta.reasoning)
        calls += chunk.delta.calls
        if sheet is not None:
            sheet.add(chunk.delta.logprobs)
        if chunk.finish is not None:
            finish = check_end(stream, chunk)
            assert chunk.usage is not None
            serving.runtime.hub.release(stream)
            logprobs = None if sheet is None else sheet.value
            return Answer(
                "".join(content),
                "".join(reasoning),
                join_calls(calls),
                logprobs,
                finish,
                chunk.usage,
            )


def running_usage(stream: TokenStream) -> Callable[[], dict[str, Any]]:
    """Counts as of the text delivered so far, for clients that want them in every chunk."""
    pipeline = stream.pipeline
    prompt_tokens = len(stream.request.prompt)
    return lambda: usage_object(prompt_tokens, pipeline.tokens_used, pipeline.reasoning_tokens)


async def send_whole(request: web.Request, serving: Serving, reply: Any) -> web.Response:
    """A reply that is not streamed. A client that does not take it in time is cut off."""
    response = json_response(reply)
    try:
        async with asyncio.timeout(request.app[STATE].settings.reader_timeout):
            await response.prepare(request)
            await response.write_eof()
    except TimeoutError:
        serving.metrics.reader_aborted("stalled_reader")
        if request.transport is not None:
            request.transport.abort()
    return response
