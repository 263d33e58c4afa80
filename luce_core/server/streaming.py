"""The streamed reply: pumps the choices of a call into one event stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from luce_core.plan import Usage
from luce_core.server.chunks import ChoiceEnd, Chunks, ReplyHead
from luce_core.server.errors import GenerationFailed
from luce_core.server.generation import Choice, check_end
from luce_core.server.params import GenerationParams
from luce_core.server.sse import DONE, EventStream, event
from luce_core.server.state import Serving
from luce_core.server.usage import sum_usage, timings_object, usage_object
from luce_core.text.pipeline import TextDelta

log = logging.getLogger(__name__)


class StreamedReply:
    """One streamed call. `run` sends headers, text, usage if asked for, and the done mark.

    An error after the headers is the last event; a client that leaves ends the pumps. The streams
    are released whatever happens.
    """

    def __init__(
        self,
        request: web.Request,
        serving: Serving,
        params: GenerationParams,
        head: ReplyHead,
        choices: Sequence[Choice],
        encoders: Sequence[Chunks],
    ) -> None:
        self._serving = serving
        self._params = params
        self._head = head
        self._choices = choices
        self._encoders = encoders
        self._out = EventStream(request)
        self._usages: list[Usage | None] = [None] * len(choices)

    async def run(self) -> web.StreamResponse:
        out = self._out
        for choice in self._choices:
            choice.stream.on_abort = out.abort
        try:
            await out.open()
            rest = await self._pump_all()
            await out.write(rest + self._usage_event() + DONE)
        except GenerationFailed as failure:
            await self._fail(failure)
        except ConnectionError:
            log.debug("the client has left")
        except Exception:
            log.exception("a streamed reply failed")
            await self._fail(GenerationFailed(500, "internal_error", "internal error"))
        finally:
            for choice in self._choices:
                self._serving.runtime.hub.release(choice.stream)
        return out.response

    async def _fail(self, failure: GenerationFailed) -> None:
        with contextlib.suppress(ConnectionError):  # its client has left as well
            await self._out.fail(failure)

    async def _pump_all(self) -> bytes:
        """Everything but the last event of the last choice, which is returned."""
        if len(self._choices) == 1:
            return await self._pump(0)
        pumps = [asyncio.ensure_future(self._pump_whole(i)) for i in range(len(self._choices))]
        try:
            await asyncio.gather(*pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        return b""

    async def _pump_whole(self, position: int) -> None:
        await self._out.write(await self._pump(position))
        # Its client reads on for the other choices, so nobody waits for this one any more.
        self._serving.runtime.hub.release(self._choices[position].stream)

    async def _pump(self, position: int) -> bytes:
        """Write a choice's events; the last is returned, so that it can share a write."""
        out = self._out
        choice, encoder = self._choices[position], self._encoders[position]
        stream = choice.stream
        if choice.prompt.echo:
            await out.write(encoder.text(TextDelta(choice.prompt.echo)))
        while True:
            chunk = await stream.read(time.monotonic)
            if chunk.is_ping:
                await out.ping()
                continue
            events = encoder.text(chunk.delta)
            if chunk.finish is None:
                if events:
                    await out.write(events)
                continue
            if events and chunk.error is not None:
                await out.write(events)
            finish = check_end(stream, chunk)
            assert chunk.usage is not None
            self._usages[position] = chunk.usage
            delta = chunk.delta
            rest = () if delta.has_text else delta.logprobs
            usage = usage_object(
                chunk.usage.prompt_tokens,
                chunk.usage.completion_tokens,
                stream.pipeline.reasoning_tokens,
            )
            timings = timings_object(stream.request, chunk.usage)
            return events + encoder.end(ChoiceEnd(finish, rest, usage, timings))

    def _usage_event(self) -> bytes:
        if not self._params.include_usage:
            return b""
        usages = [usage for usage in self._usages if usage is not None]
        reasoning = [choice.stream.pipeline.reasoning_tokens for choice in self._choices]
        total: dict[str, Any] = sum_usage(usages, reasoning, self._params.n)
        return event(self._head.with_fields(choices=[], usage=total))
