"""Token counts and times of a reply, in OpenAI's and llama-server's shapes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from luce_core.plan import Usage
from luce_core.request import Request


def usage_object(
    prompt_tokens: int, completion_tokens: int, reasoning_tokens: int
) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": min(reasoning_tokens, completion_tokens)},
    }


def sum_usage(
    usages: Sequence[Usage], reasoning_tokens: Sequence[int], choices_per_prompt: int
) -> dict[str, Any]:
    """One usage for a call: a prompt counts once, however many choices answer it."""
    return usage_object(
        sum(usage.prompt_tokens for usage in usages[::choices_per_prompt]),
        sum(usage.completion_tokens for usage in usages),
        sum(reasoning_tokens),
    )


def timings_object(request: Request, usage: Usage) -> dict[str, Any]:
    """llama-server's `timings` of one finished request; empty if it never reached a token."""
    times = request.times
    admitted, first = times.admitted, times.first_token
    if admitted is None or first is None:
        return {}
    finished = times.finished if times.finished is not None else time.monotonic()
    prompt_s = max(first - admitted, 1e-6)
    predicted_s = max(finished - first, 1e-6)
    timings: dict[str, Any] = {
        "prompt_n": usage.prompt_tokens,
        "prompt_ms": round(prompt_s * 1000, 3),
        "prompt_per_second": round(usage.prompt_tokens / prompt_s, 3),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": round(predicted_s * 1000, 3),
        "predicted_per_second": round(usage.completion_tokens / predicted_s, 3),
        "queue_ms": round((admitted - times.submitted) * 1000, 3),
    }
    if usage.proposed:
        timings["draft_n"] = usage.proposed
        timings["draft_n_accepted"] = usage.accepted
    return timings
