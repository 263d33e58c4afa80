"""One streamed answer of an OpenAI-compatible server, with the moment of each piece of text."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from aiohttp.http_exceptions import HttpProcessingError

from luce_core.bench.options import BenchOptions

_MOST_ERROR_CHARS = 200
# Of the connection, of the protocol (too long a line), and of JSON that is not as it should be.
_FAILURES = (
    aiohttp.ClientError,
    HttpProcessingError,
    TimeoutError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Seconds of time.perf_counter; `moments` has one for each piece of text that came.

    `tokens` and `prompt_tokens` are the server's own counts, None if it gave none. With `error`
    set the rest is what came before it.
    """

    sent: float
    moments: tuple[float, ...]
    tokens: int | None = None
    prompt_tokens: int | None = None
    error: str | None = None

    @property
    def first(self) -> float:
        return self.moments[0]

    @property
    def last(self) -> float:
        return self.moments[-1]

    @property
    def gaps(self) -> list[float]:
        """Seconds between neighbouring pieces of text."""
        return [b - a for a, b in zip(self.moments, self.moments[1:], strict=False)]


class Client:
    """Sends requests to one server. `model` is the name that it is asked for."""

    def __init__(
        self, session: aiohttp.ClientSession, base: str, options: BenchOptions, *, seed: int
    ) -> None:
        self.base = base
        self.model = options.model or ""
        self._session = session
        self._chat = options.api == "chat"
        self._headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
        self._seed = seed

    async def find_model(self) -> None:
        """Take the first model that the server lists; any name if it lists none."""
        self.model = "default"
        url = f"{self.base}/v1/models"
        try:
            async with self._session.get(
                url, headers=self._headers, allow_redirects=False
            ) as reply:
                listed = orjson.loads(await reply.read())
            self.model = str(listed["data"][0]["id"])
        except _FAILURES:
            return  # the first request tells what is wrong, if anything is

    async def ask(
        self, prompt: str, tokens: int, heard: Callable[[int], None] | None = None
    ) -> Answer:
        """Exactly `tokens` greedy tokens, if the server obeys. Never raises for what it does.

        `heard(n)` is called after the n-th piece of text.
        """
        moments: list[float] = []
        usage: dict[str, Any] = {}
        sent = time.perf_counter()
        try:
            error = await self._stream(prompt, tokens, moments, usage, heard)
        except _FAILURES as failure:
            error = f"{type(failure).__name__}: {failure}"
        if error is None and not moments:
            error = "the answer has no text"
        return Answer(
            sent=sent,
            moments=tuple(moments),
            tokens=_count(usage, "completion_tokens"),
            prompt_tokens=_count(usage, "prompt_tokens"),
            error=None if error is None else error[:_MOST_ERROR_CHARS],
        )

    def _body(self, prompt: str, tokens: int) -> tuple[str, bytes]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": tokens,
            "temperature": 0,
            "seed": self._seed,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._chat:
            body["messages"] = [{"role": "user", "content": prompt}]
            return "/v1/chat/completions", orjson.dumps(body)
        body["prompt"] = prompt
        return "/v1/completions", orjson.dumps(body)

    async def _stream(
        self,
        prompt: str,
        tokens: int,
        moments: list[float],
        usage: dict[str, Any],
        heard: Callable[[int], None] | None,
    ) -> str | None:
        """Fill `moments` and `usage`; the error that the server reports, if any."""
        path, body = self._body(prompt, tokens)
        headers = {**self._headers, "Content-Type": "application/json"}
        ended = None
        async with self._session.post(
            self.base + path, data=body, headers=headers, allow_redirects=False
        ) as reply:
            if reply.status != 200:
                text = await reply.content.read(4 * _MOST_ERROR_CHARS)
                return f"HTTP {reply.status}: {text.decode(errors='replace')}"
            async for line in reply.content:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    break
                event = orjson.loads(data)
                if event.get("error"):
                    return f"error in the stream: {event['error']}"
                usage.update(event.get("usage") or {})
                for choice in event.get("choices") or ():
                    now = time.perf_counter()
                    if self._text(choice):
                        moments.append(now)
                        if heard is not None:
                            heard(len(moments))
                    elif choice.get("finish_reason"):
                        ended = now
        # Tokens without text (a part of a character, a control token) came with the end.
        if not moments and ended is not None and _count(usage, "completion_tokens"):
            moments.append(ended)
        return None

    def _text(self, choice: dict[str, Any]) -> bool:
        if not self._chat:
            return bool(choice.get("text"))
        delta = choice.get("delta") or {}
        return bool(delta.get("content") or delta.get("reasoning_content"))


def _count(usage: dict[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) else None
