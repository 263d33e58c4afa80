"""What load generators send: every request yields exactly the tokens that it asks for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

PROMPTS = (
    "Write a Python function that reverses a singly linked list in place.",
    "Explain what this code does: for i in range(len(a)): a[i], a[-i-1] = a[-i-1], a[i]",
    "Hi",
)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", lambda prompt: {"prompt": prompt}),
        ("/v1/chat/completions", lambda p: {"messages": [{"role": "user", "content": p}]}),
    ],
    ids=["completions", "chat"],
)
def test_three_streams_at_once_have_exactly_n_tokens_each(smollm2, path, fields):
    """Beyond the end mark too: these short answers would end long before."""

    def run(prompt: str) -> tuple[int, str, int]:
        body = {
            "model": "default",
            "max_tokens": 24,
            "temperature": 0,
            "top_k": 1,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
            **fields(prompt),
        }
        *events, end = smollm2.stream(path, body)
        assert end is None
        finish = [c["finish_reason"] for event in events for c in event["choices"]]
        texts = [c for event in events for c in event["choices"] if text_of(c)]
        assert events[-1]["choices"] == []
        return events[-1]["usage"]["completion_tokens"], finish[-1], len(texts)

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(run, PROMPTS))
    assert [tokens for tokens, _, _ in results] == [24, 24, 24]
    assert [finish for _, finish, _ in results] == ["length"] * 3
    assert all(chunks > 5 for _, _, chunks in results)
    smollm2.wait_idle()


def text_of(choice: dict) -> str:
    return str(choice.get("text") or choice.get("delta", {}).get("content") or "")
