"""A Qwen2.5 model: ids without text, user-defined tokens, keys that quantise badly.

Set QWEN_CODER_GGUF to a file of Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, to run these.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

UNUSED = 151_700  # type 5: it has a row of logits and no text
TOOL_CALL = 151_657  # type 4: user-defined, visible


@pytest.fixture(scope="module")
def qwen(qwen_path: Path, launch: Any) -> Iterator[Any]:
    words = ("--threads", "1", "--kv-pool-tokens", "16384", "--max-ctx", "8192")
    with launch(qwen_path, *words) as server:
        yield server


@pytest.mark.parametrize("temperature", [0, 2])
def test_an_id_without_text_is_no_text_and_no_failure(qwen, temperature):
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "logit_bias": {str(UNUSED): 100},
        "temperature": temperature,
        "max_tokens": 12,
        "logprobs": True,
        "top_logprobs": 5,
        "stream_options": {"include_usage": True},
    }
    *events, end = qwen.stream("/v1/chat/completions", body)
    assert end is None
    assert events[-1]["usage"]["completion_tokens"] == 12
    choices = [choice for event in events for choice in event["choices"]]
    assert choices[-1]["finish_reason"] == "length"
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == ""
    entries = [e for c in choices for e in (c["logprobs"] or {}).get("content") or []]
    assert len(entries) == 12
    assert all(len(entry["top_logprobs"]) == 5 for entry in entries)


def test_the_name_of_an_unused_id_is_plain_text(qwen):
    tokens = qwen.post("/tokenize", {"content": f"[PAD{UNUSED}]"})["tokens"]
    assert UNUSED not in tokens
    assert len(tokens) > 3


def test_user_defined_tokens_are_atomic_and_plain_tags_are_not(qwen):
    assert qwen.post("/tokenize", {"content": "<tool_call>"})["tokens"] == [TOOL_CALL]
    assert qwen.post("/tokenize", {"content": "<think>"})["tokens"] == [13708, 766, 29]
    shown = qwen.complete("x", max_tokens=1, temperature=0, logit_bias={str(TOOL_CALL): 100})
    assert shown["text"] == "<tool_call>"


def test_it_answers_in_code(qwen):
    choice = qwen.complete("def add(a, b):\n    return", temperature=0, max_tokens=4)
    assert choice["text"].startswith(" a + b")
