"""No seed: a fresh answer each time. A seed: one answer, alone, in company, after a restart."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

STORY = {"prompt": "Once upon a time", "temperature": 1, "ignore_eos": True}
NEIGHBOURS = ("def main():", "Dear Sir or Madam,", "2 + 2 =", "The weather in Oslo is")


def text(server: Any, **fields: Any) -> str:
    return str(server.complete(**{**STORY, "max_tokens": 12, **fields})["text"])


def texts_at_once(server: Any, calls: Iterable[dict[str, Any]]) -> list[str]:
    calls = list(calls)
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(lambda fields: text(server, **fields), calls))


def test_without_a_seed_six_requests_have_six_answers(smollm2):
    answers = [text(smollm2) for _ in range(3)]
    answers += texts_at_once(smollm2, [{}] * 3)
    assert len(set(answers)) == 6


def test_a_seed_is_one_text_alone_twice_at_once_in_company_and_after_a_restart(
    smollm2, serve, smollm2_path
):
    alone = text(smollm2, seed=7)
    assert text(smollm2, seed=8) != alone
    assert texts_at_once(smollm2, [{"seed": 7}] * 2) == [alone, alone]
    neighbours = [{"prompt": prompt, "max_tokens": 14} for prompt in NEIGHBOURS]
    in_company = texts_at_once(smollm2, [*neighbours, {"seed": 7}])
    assert in_company[-1] == alone
    again = serve(smollm2_path, "--threads", "1", "--kv-pool-tokens", "8192")
    assert text(again, seed=7) == alone


def test_the_choices_of_a_seed_differ_and_the_first_is_the_text_of_one_choice(smollm2):
    def choices() -> list[str]:
        body = {**STORY, "n": 3, "seed": 7, "max_tokens": 12}
        return [c["text"] for c in smollm2.post("/v1/completions", body)["choices"]]

    first = choices()
    assert len(set(first)) == 3
    assert choices() == first
    assert first[0] == text(smollm2, seed=7)


@pytest.mark.slow
def test_a_seed_is_one_text_for_many_seeds_in_company(smollm2):
    """Scores of a row may differ in company by rounding; a seeded text must bear that."""
    for first in range(0, 20, 4):
        seeds = range(first, first + 4)
        alone = [text(smollm2, seed=seed, max_tokens=40) for seed in seeds]
        together = texts_at_once(smollm2, [{"seed": seed, "max_tokens": 40} for seed in seeds])
        assert together == alone, f"seeds {first} to {first + 3}"
