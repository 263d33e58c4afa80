"""Streamed chunks as bytes. What stays the same in a stream is encoded once."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from luce_core.plan import TokenLogprob
from luce_core.server.logprobs import chat_logprobs, text_logprobs
from luce_core.text.pipeline import TextDelta
from luce_core.text.tokenizer import Tokenizer

_dumps = orjson.dumps
_NULL = b"null"


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What every chunk of a reply, and the whole reply, carry alike."""

    id: str
    object: str
    created: int
    model: str

    def with_fields(self, **fields: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            **fields,
        }


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """How a choice ended. `rest` are the logprobs of tokens without text, such as a stop id."""

    finish: str
    rest: Sequence[TokenLogprob]
    usage: dict[str, Any]
    timings: dict[str, Any]


class Chunks(Protocol):
    """Encodes one choice of one reply; `text` in order, then `end` once."""

    def text(self, delta: TextDelta) -> bytes:
        """Events for new text; empty for an empty delta."""

    def end(self, end: ChoiceEnd) -> bytes:
        """The event with the finish reason."""


def call_object(name: str, arguments: str) -> dict[str, Any]:
    """A tool call with an id of its own, as a whole reply and the first chunk of a call have it."""
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


# Token counts so far, for clients that asked for them in every chunk.
RunningUsage = Callable[[], dict[str, Any]]


class _Frame:
    """The fixed bytes around a choice: `head` + choice + `tail(usage)`."""

    def __init__(self, head: ReplyHead, index: int, running: RunningUsage | None) -> None:
        fixed = _dumps(head.with_fields())
        self.head = b"data: " + fixed[:-1] + b',"choices":[{"index":%d,' % index
        self._running = running

    def tail(self) -> bytes:
        usage = b"" if self._running is None else b',"usage":' + _dumps(self._running())
        return b',"finish_reason":null}]' + usage + b"}\n\n"

    def last_tail(self, end: ChoiceEnd) -> bytes:
        usage = b"" if self._running is None else b',"usage":' + _dumps(end.usage)
        timings = b',"timings":' + _dumps(end.timings) if end.timings else b""
        finish = b',"finish_reason":' + _dumps(end.finish)
        return finish + b"}]" + usage + timings + b"}\n\n"

    @property
    def is_fixed(self) -> bool:
        return self._running is None


class ChatChunks:
    """chat.completion.chunk events; the role comes with the first text.

    A call begins with its id, type and name; more of its arguments come in later events.
    """

    def __init__(
        self,
        head: ReplyHead,
        index: int,
        tokenizer: Tokenizer,
        *,
        running: RunningUsage | None = None,
        wants_logprobs: bool = False,
    ) -> None:
        self._frame = _Frame(head, index, running)
        self._tokenizer = tokenizer
        self._wants_logprobs = wants_logprobs
        self._is_plain = self._frame.is_fixed and not wants_logprobs
        self._content_head = self._frame.head + b'"delta":{"content":'
        self._content_tail = b'},"logprobs":null' + self._frame.tail() if self._is_plain else b""
        self._has_begun = False

    def text(self, delta: TextDelta) -> bytes:
        content, reasoning, logprobs, calls = delta
        if self._is_plain and self._has_begun and not reasoning and not calls:
            if not content:
                return b""
            return self._content_head + _dumps(content) + self._content_tail
        parts: list[bytes] = []
        if reasoning:
            text = _dumps(reasoning)
            parts.append(b'{"reasoning_content":' + text + b',"reasoning":' + text + b"}")
        if content:
            parts.append(b'{"content":' + _dumps(content) + b"}")
        for call in calls:
            if call.name:
                head = {"index": call.number, **call_object(call.name, "")}
                parts.append(_dumps({"tool_calls": [head]}))
            if call.arguments:
                more = {"index": call.number, "function": {"arguments": call.arguments}}
                parts.append(_dumps({"tool_calls": [more]}))
        if not parts:
            return b""
        events = [] if self._has_begun else [self._role()]
        events += [self._event(part, ()) for part in parts[:-1]]
        # The log-probabilities of a delta stay together.
        events.append(self._event(parts[-1], logprobs))
        return b"".join(events)

    def end(self, end: ChoiceEnd) -> bytes:
        role = b"" if self._has_begun else self._role()
        head = self._frame.head + b'"delta":{},"logprobs":'
        return role + head + self._logprobs(end.rest) + self._frame.last_tail(end)

    def _role(self) -> bytes:
        self._has_begun = True
        return self._event(b'{"role":"assistant","content":""}', ())

    def _event(self, delta: bytes, logprobs: Sequence[TokenLogprob]) -> bytes:
        head = self._frame.head + b'"delta":' + delta
        return head + b',"logprobs":' + self._logprobs(logprobs) + self._frame.tail()

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> bytes:
        if not (self._wants_logprobs and entries):
            return _NULL
        return _dumps(chat_logprobs(self._tokenizer, entries))


class TextChunks:
    """text_completion events."""

    def __init__(
        self,
        head: ReplyHead,
        index: int,
        tokenizer: Tokenizer,
        *,
        running: RunningUsage | None = None,
        wants_logprobs: bool = False,
    ) -> None:
        self._frame = _Frame(head, index, running)
        self._tokenizer = tokenizer
        self._wants_logprobs = wants_logprobs
        self._is_plain = self._frame.is_fixed and not wants_logprobs
        self._text_head = self._frame.head + b'"text":'
        self._text_tail = b',"logprobs":null' + self._frame.tail() if self._is_plain else b""
        self._offset = 0

    def text(self, delta: TextDelta) -> bytes:
        content = delta.content
        if not content:
            return b""
        if self._is_plain:
            return self._text_head + _dumps(content) + self._text_tail
        logprobs = self._logprobs(delta.logprobs)
        head = self._text_head + _dumps(content)
        return head + b',"logprobs":' + logprobs + self._frame.tail()

    def end(self, end: ChoiceEnd) -> bytes:
        head = self._text_head + b'"","logprobs":'
        return head + self._logprobs(end.rest) + self._frame.last_tail(end)

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> bytes:
        if not (self._wants_logprobs and entries):
            return _NULL
        shape, self._offset = text_logprobs(self._tokenizer, entries, self._offset)
        return _dumps(shape)
