"""One request's way out: token events in, text deltas to the one handler that reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from luce_core.plan import TokenEvent, TokenLogprob, Usage
from luce_core.request import FinishReason, Request
from luce_core.text.pipeline import TextDelta, TextPipeline, join_calls

EMPTY = TextDelta()


class StreamChunk(NamedTuple):
    """What a reader gets: text since the last read, and how it ended if it has.

    `is_ping` marks a read that returned only because the stream was quiet for the ping interval.
    """

    delta: TextDelta
    finish: FinishReason | None = None
    usage: Usage | None = None
    error: str | None = None
    is_ping: bool = False


PING = StreamChunk(EMPTY, is_ping=True)


class TokenStream:
    """Buffers text until its handler reads it. asyncio thread only.

    `feed` never waits. `read` is called by one handler at a time. The hub watches `unread_bytes`
    and `busy_since` (when the handler last left `read`; None while it waits there) and aborts a
    stream whose reader does not keep up.
    """

    def __init__(self, request: Request, pipeline: TextPipeline) -> None:
        self.request = request
        self.pipeline = pipeline
        self.unread_bytes = 0
        self.busy_since: float | None = request.times.submitted
        self.quiet_since = request.times.submitted
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.abort_reason: str | None = None
        self.on_abort: Callable[[], None] | None = None
        self.is_closed = False
        self._deltas: list[TextDelta] = []
        self._end: StreamChunk | None = None
        self._reader: asyncio.Future[None] | None = None

    @property
    def has_ended(self) -> bool:
        """The reader's last chunk is known; later events change nothing that a client sees."""
        return self._end is not None

    def feed(self, event: TokenEvent) -> bool:
        """Take an event; True if the pipeline has just ended the text."""
        if self._end is not None or self.is_closed:
            return False
        tokens, logprobs = event.tokens, event.logprobs
        stop_logprobs: tuple[TokenLogprob, ...] = ()
        if event.finish is FinishReason.STOP and tokens:
            # A stop id counts and has a logprob, but it is no text.
            tokens = tokens[:-1]
            if logprobs is not None:
                logprobs, stop_logprobs = logprobs[:-1], logprobs[-1:]
        if tokens:
            self._add(self.pipeline.push(tokens, logprobs))
        if self.pipeline.stopped:
            self._add(self.pipeline.finish())
            usage = Usage(
                len(self.request.prompt),
                self.pipeline.tokens_used,
                self.request.proposed,
                self.request.accepted,
            )
            self._close(StreamChunk(EMPTY, FinishReason.STOP, usage))
            return True
        if event.finish is not None:
            last = self.pipeline.finish()
            if stop_logprobs:
                last = last._replace(logprobs=last.logprobs + stop_logprobs)
            self._add(last)
            self._close(StreamChunk(EMPTY, event.finish, event.usage, event.error))
        return False

    def fail(self, error: str) -> None:
        """End the text here with an error that the reader is told."""
        if self._end is None:
            self._close(StreamChunk(EMPTY, FinishReason.ERROR, error=error))

    def _add(self, delta: TextDelta) -> None:
        if delta.is_empty:
            return
        self._deltas.append(delta)
        # Characters bound bytes closely enough for a limit; encoding twice would cost more.
        self.unread_bytes += len(delta.content) + len(delta.reasoning) + 64 * len(delta.logprobs)
        self.unread_bytes += sum(len(call.name) + len(call.arguments) for call in delta.calls)
        self._wake()

    def _close(self, end: StreamChunk) -> None:
        self._end = end
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def ping_if_quiet(self, now: float, interval_s: float) -> None:
        """Make a waiting `read` return a ping if nothing was read for `interval_s`."""
        if self._reader is not None and now - self.quiet_since >= interval_s:
            self.quiet_since = now
            self._wake()

    async def read(self, now: Callable[[], float]) -> StreamChunk:
        """Text since the last read, merged; waits if there is none. Ends with `finish` set."""
        if not self._deltas and self._end is None and self.abort_reason is None:
            self._reader = asyncio.get_running_loop().create_future()
            self.busy_since = None
            try:
                await self._reader
            finally:
                self._reader = None
                self.busy_since = now()
        deltas = self._deltas
        if self.abort_reason is not None:
            return StreamChunk(EMPTY, FinishReason.CANCELLED, error=self.abort_reason)
        if not deltas and self._end is None:
            return PING
        self._deltas = []
        self.unread_bytes = 0
        self.busy_since = self.quiet_since = now()
        delta = deltas[0] if len(deltas) == 1 else _merge(deltas)
        if self._end is None:
            return StreamChunk(delta)
        return self._end._replace(delta=delta)

    def abort(self, reason: str) -> None:
        """Give up on a reader that does not keep up: drop the text and wake or break it."""
        self.abort_reason = reason
        self._deltas = []
        self._wake()
        if self.on_abort is not None:
            self.on_abort()


def _merge(deltas: list[TextDelta]) -> TextDelta:
    if not deltas:
        return EMPTY
    return TextDelta(
        "".join([delta.content for delta in deltas]),
        "".join([delta.reasoning for delta in deltas]),
        tuple(entry for delta in deltas for entry in delta.logprobs),
        join_calls(call for delta in deltas for call in delta.calls),
    )
