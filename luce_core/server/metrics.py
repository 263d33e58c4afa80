"""What is counted while requests come and go. The hub calls this; `exposition` prints it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable

from luce_core.hookspecs import RequestSummary
from luce_core.plan import TokenEvent
from luce_core.request import FinishReason, Request, State
from luce_core.runtime.token_stream import TokenStream
from luce_core.server.histogram import Histogram

log = logging.getLogger(__name__)

_LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
_GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)

OnFinished = Callable[[RequestSummary], None]


class Metrics:
    """Implements HubObserver. asyncio thread only; plain numbers, no locks.

    `on_finished` is called with a summary of each ended request; what it raises is logged.
    """

    def __init__(self, on_finished: Iterable[OnFinished] = ()) -> None:
        self._on_finished = tuple(on_finished)
        self._open: dict[int, tuple[Request, str]] = {}
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.finished: Counter[FinishReason] = Counter()
        self.cancelled_in: Counter[State] = Counter(
            dict.fromkeys((State.QUEUED, State.PREFILL, State.DECODE), 0)
        )
        self.rejections: Counter[str] = Counter()
        self.aborted_readers: Counter[str] = Counter()
        self.time_to_first_token = Histogram(_LATENCY_S)
        self.inter_token = Histogram(_GAP_S)
        self.end_to_end = Histogram(_LATENCY_S)
        self.queue_time = Histogram(_LATENCY_S)
        self.prefill_time = Histogram(_LATENCY_S)
        self.decode_time = Histogram(_LATENCY_S)
        self.request_prompt_tokens = Histogram(_TOKENS)
        self.request_generation_tokens = Histogram(_TOKENS)

    def opened(self, request: Request, client_id: str) -> None:
        """A request goes to the engine thread; `client_id` is the X-Request-Id of its call."""
        self._open[request.id] = (request, client_id)

    def head_of_line_wait_s(self, now: float) -> float:
        """How long the oldest request that holds no slot yet has waited."""
        waiting = (
            request.times.submitted
            for request, _ in self._open.values()
            if request.times.admitted is None
        )
        return max(0.0, now - min(waiting, default=now))

    # -- HubObserver -----------------------------------------------------------------------------

    def token_event(self, stream: TokenStream, tokens: int, now: float) -> None:
        last = stream.last_token_at
        if last is None:
            self.time_to_first_token.observe(now - stream.request.times.submitted)
        else:
            self.inter_token.observe(now - last)
        self.generation_tokens += tokens

    def request_ended(self, stream: TokenStream, event: TokenEvent) -> None:
        request = stream.request
        times = request.times
        finish = event.finish
        assert finish is not None
        now = times.finished if times.finished is not None else time.monotonic()
        _, client_id = self._open.pop(request.id, (request, ""))
        self.finished[finish] += 1
        if finish is FinishReason.CANCELLED and request.ended_in is not None:
            self.cancelled_in[request.ended_in] += 1
        self.draft_tokens += request.proposed
        self.accepted_tokens += request.accepted
        completion_tokens = event.usage.completion_tokens if event.usage else 0
        admitted, first = times.admitted, times.first_token
        self.queue_time.observe((now if admitted is None else admitted) - times.submitted)
        if admitted is not None and first is not None:
            self.prompt_tokens += len(request.prompt)
            self.prefill_time.observe(first - admitted)
            self.decode_time.observe(now - first)
        if finish in (FinishReason.STOP, FinishReason.LENGTH):
            self.end_to_end.observe(now - times.submitted)
            self.request_prompt_tokens.observe(len(request.prompt))
            self.request_generation_tokens.observe(completion_tokens)
        if self._on_finished:
            self._tell(
                RequestSummary(
                    request_id=request.id,
                    client_id=client_id,
                    finish=str(finish),
                    prompt_tokens=len(request.prompt),
                    completion_tokens=completion_tokens,
                    queue_s=(now if admitted is None else admitted) - times.submitted,
                    time_to_first_token_s=None if first is None else first - times.submitted,
                    total_s=now - times.submitted,
                    preemptions=request.preemptions,
                    proposed=request.proposed,
                    accepted=request.accepted,
                )
            )

    def rejected(self, code: str) -> None:
        self.rejections[code] += 1

    def reader_aborted(self, cause: str) -> None:
        self.aborted_readers[cause] += 1

    def _tell(self, summary: RequestSummary) -> None:
        for listener in self._on_finished:
            try:
                listener(summary)
            except Exception:
                log.exception("a luce_request_finished hook failed")
