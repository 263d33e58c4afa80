"""A long prompt does not keep a short one waiting, and loses little by its company."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

SHORT = "Please name the three largest cities of Europe and say how many people live there."


def check_short_beside_long(server: Any, long_tokens: int) -> float:
    """The short prompt's first token comes within three steps; the time of the long one in s."""
    long_prompt = "lorem ipsum code review " * (long_tokens // 7)

    def run_long() -> tuple[int, float]:
        started = time.monotonic()
        body = {"prompt": long_prompt, "max_tokens": 1, "temperature": 0}
        usage = server.post("/v1/completions", body)["usage"]
        return usage["prompt_tokens"], time.monotonic() - started

    with ThreadPoolExecutor(1) as pool:
        start_step = server.metric("luce:steps")
        running = pool.submit(run_long)
        server.wait_for(lambda: server.metric("luce:steps") > start_step, "step of the long prompt")
        body = {"prompt": SHORT, "max_tokens": 1, "temperature": 0}
        events = server.stream("/v1/completions", body)
        before = server.metric("luce:steps")
        next(events)
        steps = server.metric("luce:steps") - before
        assert not running.done(), "the long prompt ended before the short one had its first token"
        list(events)
        prompt_tokens, seconds = running.result()
    assert prompt_tokens >= long_tokens
    # One of them was under way when the short prompt came.
    assert steps <= 3 + 1
    return seconds


def test_a_short_prompt_starts_within_three_steps_of_a_long_one(smollm2):
    check_short_beside_long(smollm2, 2500)


@pytest.mark.slow
def test_a_short_prompt_starts_within_three_steps_of_a_very_long_one(smollm2):
    """In company the long one takes at most a tenth longer than alone."""
    body = {"prompt": "lorem ipsum code review " * 1000, "max_tokens": 1, "temperature": 0}
    started = time.monotonic()
    assert smollm2.post("/v1/completions", body)["usage"]["prompt_tokens"] >= 7000
    alone = time.monotonic() - started
    assert check_short_beside_long(smollm2, 7000) < 1.1 * alone + 0.5
