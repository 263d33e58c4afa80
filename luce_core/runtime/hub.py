"""The asyncio side of the runtime: who is accepted, whose text is whose, who is too slow."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from luce_core.commands import Cancel, Finish, Submit
from luce_core.errors import Overloaded
from luce_core.plan import TokenEvent
from luce_core.request import Request
from luce_core.runtime.inbox import Inbox
from luce_core.runtime.token_stream import TokenStream
from luce_core.text.pipeline import TextPipeline

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """When a reader is too slow (text buffered, seconds in one write), and how often to ping."""

    buffer_bytes: int = 1 << 20
    stalled_reader_s: float = 30.0
    ping_s: float = 15.0


class HubObserver(Protocol):
    """What metrics and hooks hear of; called on the asyncio thread."""

    def token_event(self, stream: TokenStream, tokens: int, now: float) -> None: ...

    def request_ended(self, stream: TokenStream, event: TokenEvent) -> None: ...

    def rejected(self, code: str) -> None: ...

    def reader_aborted(self, cause: str) -> None: ...


class Hub:
    """Streams by request id. All but `post` and `is_receiving` is for the asyncio thread.

    At most `max_unfinished` requests are open at a time: a request counts until the scheduler's
    terminal event for it has come. A reader is watched until its handler has released it.
    """

    def __init__(
        self,
        inbox: Inbox,
        *,
        max_unfinished: int,
        limits: StreamLimits,
        observer: HubObserver,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inbox = inbox
        self._max_unfinished = max_unfinished
        self._limits = limits
        self._observer = observer
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[int, TokenStream] = {}
        self._readers: dict[int, TokenStream] = {}
        self._reserved = 0
        self._ids = itertools.count(1)
        self._sweeper: asyncio.Task[None] | None = None
        self.closed_for: Overloaded | None = None

    @property
    def unfinished(self) -> int:
        return len(self._streams) + self._reserved

    @property
    def is_receiving(self) -> bool:
        """Whether requests have a place and are not submitted yet. Any thread may ask."""
        return self._reserved > 0

    @property
    def open_readers(self) -> int:
        """Streams whose handler has not released them yet."""
        return len(self._readers)

    @property
    def unread_bytes(self) -> int:
        return sum(stream.unread_bytes for stream in self._readers.values())

    async def start(self) -> None:
        """Bind to the running loop and start watching readers."""
        self._loop = asyncio.get_running_loop()
        self._sweeper = asyncio.create_task(self._sweep(), name="luce-hub-sweep")

    async def close(self) -> None:
        """Stop watching. Call after the engine thread has ended."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)

    # -- in ------------------------------------------------------------------------------------

    def next_id(self) -> int:
        return next(self._ids)

    def reserve(self, count: int) -> None:
        """Keep room for `count` requests, or Overloaded. Undo with `unreserve`, use with `open`."""
        refusal = self.closed_for
        if refusal is None and self.unfinished + count > self._max_unfinished:
            refusal = Overloaded(
                f"{self.unfinished} requests are waiting or running, which is the limit; "
                "try again in a moment"
            )
        if refusal is not None:
            self._observer.rejected(refusal.code)
            raise refusal
        self._reserved += count

    def unreserve(self, count: int) -> None:
        self._reserved -= count

    def open(self, request: Request, pipeline: TextPipeline) -> TokenStream:
        """Register the stream and hand the request to the engine thread. Uses one reservation."""
        self._reserved -= 1
        stream = TokenStream(request, pipeline)
        self._streams[request.id] = stream
        self._readers[request.id] = stream
        self._inbox.put(Submit(request))
        return stream

    def release(self, stream: TokenStream) -> None:
        """The handler is done with the stream, or its client has left. Idempotent."""
        if stream.is_closed:
            return
        stream.is_closed = True
        del self._readers[stream.request.id]
        if not stream.has_ended:
            self._inbox.put(Cancel(stream.request.id))

    # -- out -----------------------------------------------------------------------------------

    def post(self, events: list[TokenEvent]) -> None:
        """Engine thread: one wake-up for all events of a step."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self.deliver, events)
        except RuntimeError:
            # The loop was closed under us: nobody is left to hear it.
            log.warning("%d events had no reader", len(events))

    def deliver(self, events: list[TokenEvent]) -> None:
        now = self._clock()
        observer = self._observer
        streams = self._streams
        for event in events:
            stream = streams.get(event.request_id)
            if stream is None:
                continue
            if event.tokens:
                observer.token_event(stream, len(event.tokens), now)
                if stream.first_token_at is None:
                    stream.first_token_at = now
                stream.last_token_at = now
            try:
                if stream.feed(event) and event.finish is None:
                    self._inbox.put(Finish(event.request_id, stream.pipeline.tokens_used))
            except Exception:
                log.exception("request %d: its text failed", event.request_id)
                self._inbox.put(Cancel(event.request_id))
                stream.fail("text_failed: the text of this request could not be produced")
            if stream.unread_bytes > self._limits.buffer_bytes and not stream.is_closed:
                self._abort_slow(stream, "buffer_bytes")
            if event.finish is not None:
                del streams[event.request_id]
                observer.request_ended(stream, event)

    def _abort_slow(self, stream: TokenStream, cause: str) -> None:
        if stream.abort_reason is not None:
            return
        log.warning("request %d: its client reads too slowly (%s)", stream.request.id, cause)
        self._observer.reader_aborted(cause)
        if not stream.has_ended:
            self._inbox.put(Cancel(stream.request.id))
        stream.abort(f"slow_reader: the client did not read fast enough ({cause})")

    # -- watch ---------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        limits = self._limits
        period_s = min(1.0, limits.ping_s / 4, limits.stalled_reader_s / 4)
        while True:
            await asyncio.sleep(period_s)
            self.sweep(self._clock())

    def sweep(self, now: float) -> None:
        """Ping quiet streams, abort readers that take nothing."""
        limits = self._limits
        for stream in list(self._readers.values()):
            stream.ping_if_quiet(now, limits.ping_s)
            busy_since = stream.busy_since
            if busy_since is not None and now - busy_since > limits.stalled_reader_s:
                self._abort_slow(stream, "stalled_reader")
