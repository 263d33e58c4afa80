"""Figures from answers whose times are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce_core.bench.client import Answer
from luce_core.bench.load import NEWCOMER_TOKENS, Span
from luce_core.bench.prompts import TASKS, Prompts
from luce_core.bench.stats import (
    METRICS,
    Measurement,
    Tally,
    measure,
    measure_join,
    medians,
    paired_ratios,
    percentile,
)


def answer(sent: float, *moments: float, tokens: int | None = None, prompt: int = 10) -> Answer:
    count = len(moments) if tokens is None else tokens
    return Answer(sent=sent, moments=moments, tokens=count, prompt_tokens=prompt)


def with_tok_s(value: float | None) -> Measurement:
    tally = Tally(requests=1, errors=0, short=0, uncounted=0, first_error=None)
    return Measurement(1, tally, {**dict.fromkeys(METRICS), "tok_s": value})


def test_rates_are_over_first_request_to_last_token_of_each_wave() -> None:
    first = Span((answer(0.0, 1.0, 2.0, 3.0), answer(0.5, 1.5, 2.5, 4.0)))
    second = Span((answer(100.0, 100.5, 101.0, 102.0), answer(100.0, 101.0, 101.5, 102.0)))
    figures = measure([first, second], clients=2, tokens=3).figures
    assert figures["seconds"] == 4.0 + 2.0
    assert figures["tok_s"] == 12 / 6.0
    assert figures["win_tok_s"] == 12 / (3.0 + 1.5)
    assert figures["ttft_ms"] == 1000.0
    assert figures["itl_ms"] == 1e3 * float(np.median([1, 1, 1, 1.5, 0.5, 1, 0.5, 0.5]))
    assert figures["itl_max_ms"] == 1500.0
    assert figures["prompt_tok_s"] == 10.0


def test_failed_answers_count_as_errors_and_nothing_else() -> None:
    failed = Answer(sent=0.0, moments=(9.0,), error="gone")
    measured = measure([Span((answer(0.0, 1.0, 2.0), failed))], clients=2, tokens=2)
    assert measured.tally == Tally(requests=2, errors=1, short=0, uncounted=0, first_error="gone")
    assert measured.figures["tok_s"] == 1.0
    nothing = measure([Span((failed,))], clients=1, tokens=2)
    assert nothing.figures["tok_s"] is None
    assert nothing.figures["ttft_ms"] is None


def test_an_answer_of_another_length_is_short_even_if_longer() -> None:
    spans = [
        Span((answer(0.0, 1.0, tokens=7), answer(0.0, 1.0, tokens=9), answer(0.0, 1.0, tokens=8)))
    ]
    assert measure(spans, clients=3, tokens=8).tally.short == 2


def test_gaps_of_a_join_begin_before_the_first_token_and_end_after_the_request() -> None:
    """Gaps: 1 before, 5 over the sending, 1 inside, 4 over the first token, 1 after."""
    clients = Span((answer(0.0, 1.0, 2.0, 7.0, 8.0, 12.0, 13.0),))
    newcomer = answer(3.0, 10.0, *[11.0] * (NEWCOMER_TOKENS - 1), prompt=700)
    measured = measure_join(clients, newcomer, clients=1, tokens=6)
    assert measured.tally.is_clean
    assert measured.tally.requests == 2
    figures = measured.figures
    assert (figures["itl_ms"], figures["itl_max_ms"]) == (4000.0, 5000.0)
    assert figures["ttft_ms"] == 7000.0
    assert figures["prompt_tok_s"] == 100.0
    assert figures["tok_s"] == 6 / 13.0


def test_a_ratio_is_of_pairs_and_not_of_medians() -> None:
    first = [with_tok_s(value) for value in (10.0, 100.0, 30.0)]
    second = [with_tok_s(value) for value in (1.0, 50.0, 30.0)]
    assert paired_ratios(first, second)["tok_s"] == [10.0, 2.0, 1.0]
    assert medians(first)["tok_s"] == 30.0
    assert medians(second)["tok_s"] == 30.0  # whose ratio would be 1


def test_repeats_that_failed_leave_no_hole() -> None:
    first = [with_tok_s(value) for value in (None, 4.0)]
    second = [with_tok_s(value) for value in (2.0, 2.0)]
    assert medians(first)["tok_s"] == 4.0
    assert paired_ratios(first, second)["tok_s"] == [2.0]
    assert medians(first)["itl_ms"] is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.floats(0, 1))
def test_percentiles_are_those_of_numpy(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(float(np.quantile(values, share)))


def test_prompts_are_numbered_and_repeat_for_a_seed() -> None:
    assert len(set(TASKS)) == 16
    made = Prompts(3).take(40)
    assert made == Prompts(3).take(40)
    assert made != Prompts(4).take(40)
    assert len({prompt[:7] for prompt in made}) == 40
    assert {prompt[8:] for prompt in made} == set(TASKS)


def test_padded_prompts_are_all_as_long_in_words() -> None:
    for count in (1, 9, 200):
        words = [prompt.split() for prompt in Prompts(5, filler=count).take(20)]
        assert {len(each) for each in words} == {1 + count + len(TASKS[0].split())}
