"""Log-probabilities in the two shapes of the OpenAI routes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from luce_core.plan import TokenLogprob
from luce_core.text.tokenizer import Tokenizer

# What OpenAI's service writes for -inf, which JSON cannot hold.
_FLOOR = -9999.0


def chat_logprobs(tokenizer: Tokenizer, entries: Iterable[TokenLogprob]) -> dict[str, Any]:
    """`{"content": [{token, logprob, bytes, top_logprobs}]}`"""
    content = []
    for entry in entries:
        item = _item(tokenizer, entry.token, entry.logprob)
        item["top_logprobs"] = [_item(tokenizer, token, value) for token, value in entry.top]
        content.append(item)
    return {"content": content, "refusal": None}


def _item(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token, control=True)
    return {
        "token": data.decode(errors="replace"),
        "logprob": max(logprob, _FLOOR),
        "bytes": list(data),
    }


def text_logprobs(
    tokenizer: Tokenizer, entries: Iterable[TokenLogprob], offset: int
) -> tuple[dict[str, Any], int]:
    """The legacy shape of completions, and the text offset behind these tokens."""
    tokens: list[str] = []
    logprobs: list[float] = []
    tops: list[dict[str, float]] = []
    offsets: list[int] = []
    for entry in entries:
        text = tokenizer.token_text(entry.token)
        tokens.append(text)
        logprobs.append(max(entry.logprob, _FLOOR))
        best: dict[str, float] = {}
        for token, value in entry.top:
            best.setdefault(tokenizer.token_text(token), max(value, _FLOOR))
        best.setdefault(text, max(entry.logprob, _FLOOR))
        tops.append(best)
        offsets.append(offset)
        offset += len(text)
    shape = {
        "tokens": tokens,
        "token_logprobs": logprobs,
        "top_logprobs": tops,
        "text_offset": offsets,
    }
    return shape, offset


class LogprobSheet(Protocol):
    """Collects the logprobs of a whole reply as they come, so that no long reply blocks at its
    end."""

    def add(self, entries: Iterable[TokenLogprob]) -> None: ...

    @property
    def value(self) -> dict[str, Any]: ...


class ChatSheet:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.value = chat_logprobs(tokenizer, ())

    def add(self, entries: Iterable[TokenLogprob]) -> None:
        self.value["content"] += chat_logprobs(self._tokenizer, entries)["content"]


class TextSheet:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0
        self.value, _ = text_logprobs(tokenizer, (), 0)

    def add(self, entries: Iterable[TokenLogprob]) -> None:
        more, self._offset = text_logprobs(self._tokenizer, entries, self._offset)
        for name, column in more.items():
            self.value[name] += column
