"""From answers to figures: one measurement, medians of repeats, ratios of pairs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from luce_core.bench.client import Answer
from luce_core.bench.load import NEWCOMER_TOKENS, Span

# Figures in the order of the table; what ends in `_ms` are milliseconds.
METRICS = (
    "tok_s",
    "win_tok_s",
    "ttft_ms",
    "ttft_p95_ms",
    "itl_ms",
    "itl_p95_ms",
    "itl_max_ms",
    "prompt_tokens",
    "prompt_tok_s",
    "seconds",
)
# None: nothing to measure, such as a gap in answers of one token.
Figures = dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How answers ended.

    `short` counts answers of another length than was asked for, `uncounted` those whose tokens
    the server did not report; these are counted by pieces of text.
    """

    requests: int
    errors: int
    short: int
    uncounted: int
    first_error: str | None

    @classmethod
    def of(cls, wanted: Iterable[tuple[Answer, int]]) -> Tally:
        """Of answers with the number of tokens that each was asked for."""
        pairs = list(wanted)
        good = [(answer, tokens) for answer, tokens in pairs if answer.error is None]
        errors = [answer.error for answer, _ in pairs if answer.error is not None]
        return cls(
            requests=len(pairs),
            errors=len(errors),
            short=sum(_tokens(answer) != tokens for answer, tokens in good),
            uncounted=sum(answer.tokens is None for answer, _ in good),
            first_error=errors[0] if errors else None,
        )

    @property
    def is_clean(self) -> bool:
        return not (self.errors or self.short)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One level, once, on one server."""

    clients: int
    tally: Tally
    figures: Figures


def measure(spans: Sequence[Span], *, clients: int, tokens: int) -> Measurement:
    """Figures of waves or loops. Throughput is over the time of the spans, without gaps between."""
    answers = [answer for span in spans for answer in span.answers]
    good = [answer for answer in answers if answer.error is None]
    figures: Figures = {**dict.fromkeys(METRICS), **_rates(spans)}
    if good:
        figures |= _first_tokens(good) | _gaps([gap for answer in good for gap in answer.gaps])
    return Measurement(clients, Tally.of((answer, tokens) for answer in answers), figures)


def measure_join(span: Span, newcomer: Answer, *, clients: int, tokens: int) -> Measurement:
    """Figures of a join.

    Gaps are those of the clients that overlap the newcomer's wait for its first token; first-token
    times and prompt figures are the newcomer's; rates are the clients'.
    """
    figures: Figures = {**dict.fromkeys(METRICS), **_rates((span,))}
    if newcomer.error is None:
        gaps = [
            after - before
            for answer in span.answers
            for before, after in zip(answer.moments, answer.moments[1:], strict=False)
            if after > newcomer.sent and before < newcomer.first
        ]
        figures |= _first_tokens([newcomer]) | _gaps(gaps)
    wanted = [(newcomer, NEWCOMER_TOKENS), *((answer, tokens) for answer in span.answers)]
    return Measurement(clients, Tally.of(wanted), figures)


def medians(measurements: Sequence[Measurement]) -> Figures:
    """Of each figure over the repeats that have it."""
    return {name: median([m.figures[name] for m in measurements]) for name in METRICS}


def paired_ratios(
    first: Sequence[Measurement], second: Sequence[Measurement]
) -> dict[str, list[float]]:
    """First over second, by figure, for each pair of repeats that has it."""
    found: dict[str, list[float]] = {}
    for name in METRICS:
        values = [(a.figures[name], b.figures[name]) for a, b in zip(first, second, strict=True)]
        found[name] = [a / b for a, b in values if a is not None and b]
    return found


def median(values: Sequence[float | None]) -> float | None:
    """Of the values that are there; None if none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """Linear between the two nearest; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _rates(spans: Sequence[Span]) -> Figures:
    tokens, total, window = 0, 0.0, 0.0
    for span in spans:
        good = [answer for answer in span.answers if answer.error is None]
        if good:
            end = max(answer.last for answer in good)
            tokens += sum(_tokens(answer) for answer in good)
            total += end - min(answer.sent for answer in good)
            window += end - min(answer.first for answer in good)
    return {
        "tok_s": tokens / total if total else None,
        "win_tok_s": tokens / window if window else None,
        "seconds": total,
    }


def _first_tokens(answers: Sequence[Answer]) -> Figures:
    waits = [answer.first - answer.sent for answer in answers]
    known = [(a.prompt_tokens, a.first - a.sent) for a in answers if a.prompt_tokens is not None]
    return {
        "ttft_ms": _ms(median(waits)),
        "ttft_p95_ms": _ms(percentile(waits, 0.95)),
        "prompt_tokens": median([length for length, _ in known]),
        # Of one request: its prompt over all of its wait, for its turn too.
        "prompt_tok_s": median([length / wait for length, wait in known]),
    }


def _gaps(gaps: Sequence[float]) -> Figures:
    return {
        "itl_ms": _ms(median(gaps)),
        "itl_p95_ms": _ms(percentile(gaps, 0.95)),
        "itl_max_ms": _ms(max(gaps, default=None)),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _tokens(answer: Answer) -> int:
    return len(answer.moments) if answer.tokens is None else answer.tokens
