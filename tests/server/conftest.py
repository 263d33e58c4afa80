"""Clients for the real application on a real socket."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from luce_core.plan import SlotOutput, TokenLogprob
from luce_core.request import SamplingParams
from luce_core.testing.driver import run_alone
from luce_core.testing.fake_engine import FakeEngine, HashMind
from luce_core.testing.fake_server import FakeServer, byte_text


@dataclass
class Reply:
    status: int
    headers: Any
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, Any]:
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


@dataclass
class Events:
    """A streamed reply taken apart."""

    chunks: list[dict[str, Any]] = field(default_factory=list)
    pings: int = 0
    done: bool = False
    after_done: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Events:
        events = cls()
        for block in text.split("\n\n"):
            if not block:
                continue
            if events.done:
                events.after_done.append(block)
            elif block == ": ping":
                events.pings += 1
            elif block == "data: [DONE]":
                events.done = True
            else:
                assert block.startswith("data: "), block
                events.chunks.append(json.loads(block[6:]))
        return events

    def choices(self, index: int = 0) -> list[dict[str, Any]]:
        return [c for chunk in self.chunks for c in chunk.get("choices", []) if c["index"] == index]

    def deltas(self, index: int = 0) -> list[str]:
        """The text pieces of a chat or a completion, in order."""
        pieces = []
        for choice in self.choices(index):
            delta = choice.get("delta", choice)
            piece = delta.get("content", delta.get("text"))
            if "role" not in delta and piece is not None and choice["finish_reason"] is None:
                pieces.append(piece)
        return pieces

    def content(self, index: int = 0) -> str:
        return "".join(self.deltas(index))

    def finish(self, index: int = 0) -> str | None:
        return self.choices(index)[-1]["finish_reason"]

    @property
    def usage(self) -> dict[str, Any]:
        (found,) = [chunk["usage"] for chunk in self.chunks if chunk.get("usage")]
        return found


class Client:
    """Requests through aiohttp's client, one connection each."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def get(self, server: FakeServer, path: str, **headers: str) -> Reply:
        async with self.session.get(server.url + path, headers=headers) as response:
            return Reply(response.status, response.headers, await response.text())

    async def post(self, server: FakeServer, path: str, body: Any, **headers: str) -> Reply:
        async with self.session.post(server.url + path, json=body, headers=headers) as response:
            return Reply(response.status, response.headers, await response.text())

    async def chat(self, server: FakeServer, text: str = "hi", **fields: Any) -> Reply:
        return await self.post(server, "/v1/chat/completions", chat_body(text, **fields))

    async def complete(self, server: FakeServer, prompt: Any = "hi", **fields: Any) -> Reply:
        return await self.post(server, "/v1/completions", {"prompt": prompt, **fields})

    async def stream_chat(self, server: FakeServer, text: str = "hi", **fields: Any) -> Events:
        reply = await self.chat(server, text, stream=True, **fields)
        assert reply.status == 200, reply.text
        return Events.parse(reply.text)

    async def stream_completion(
        self, server: FakeServer, prompt: Any = "hi", **fields: Any
    ) -> Events:
        reply = await self.complete(server, prompt, stream=True, **fields)
        assert reply.status == 200, reply.text
        return Events.parse(reply.text)


def chat_body(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


class RawClient:
    """One TCP connection, bytes in and bytes out; `abort` resets it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.seen = b""

    @classmethod
    async def connect(
        cls, server: FakeServer, *, receive_buffer: int | None = None, limit: int = 1 << 16
    ) -> RawClient:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
        return cls(reader, writer)

    def send(
        self, path: str, body: Any = None, *, method: str = "POST", close: bool = False
    ) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n"
        if close:
            head += "Connection: close\r\n"
        self.writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + data)

    async def until(self, *marks: bytes, timeout_s: float = 10.0) -> bytes:
        """Read until each mark has come, in order; the bytes up to and with the last."""
        position = 0
        async with asyncio.timeout(timeout_s):
            for mark in marks:
                while (found := self.seen.find(mark, position)) < 0:
                    data = await self.reader.read(1 << 16)
                    assert data, f"closed before {mark!r}: {self.seen[-300:]!r}"
                    self.seen += data
                position = found + len(mark)
        taken, self.seen = self.seen[:position], self.seen[position:]
        return taken

    async def rest(self, timeout_s: float = 10.0) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(timeout_s):
            data = self.seen + await self.reader.read()
        self.seen = b""
        return data

    def abort(self) -> None:
        self.writer.transport.abort()


class LogprobEngine(FakeEngine):
    """A FakeEngine whose tokens carry log-probabilities: -0.5, and the N next ids below it."""

    def _run_segment(self, segment: Any) -> SlotOutput:
        output = super()._run_segment(segment)
        wanted = segment.held.request.params.logprobs
        if wanted is None or not output.tokens:
            return output
        entries = tuple(
            TokenLogprob(t, -0.5, tuple(((t + i) % 256, -0.5 - i) for i in range(wanted)))
            for t in output.tokens
        )
        return output._replace(logprobs=entries)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Client(session)


@pytest.fixture
async def raw() -> AsyncIterator[Callable[..., Awaitable[RawClient]]]:
    """`await raw(server)` is a new connection; all are dropped after the test."""
    opened: list[RawClient] = []

    async def connect(server: FakeServer, **options: Any) -> RawClient:
        opened.append(await RawClient.connect(server, **options))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.abort()
        await asyncio.gather(connection.writer.wait_closed(), return_exceptions=True)


@pytest.fixture
def parse_events() -> Callable[[str], Events]:
    return Events.parse


@pytest.fixture
def body_of() -> Callable[..., dict[str, Any]]:
    return chat_body


@pytest.fixture
def logprob_engine() -> type[LogprobEngine]:
    return LogprobEngine


@pytest.fixture
def solo() -> Callable[..., str]:
    """What HashMind answers to a chat (or raw prompt) when it runs alone."""
    text = byte_text()

    def answer(content: str, *, max_tokens: int, raw: bool = False) -> str:
        if raw:
            ids = text.tokenizer.encode(content, parse_special=True)
        else:
            prompt = text.chat_format.render([{"role": "user", "content": content}])
            ids = text.tokenizer.encode_prompt(prompt)
        engine = FakeEngine(HashMind(), slots=1)
        engine.allocate(64)
        output = run_alone(
            engine, ids, max_tokens=max_tokens, pool_blocks=64, params=SamplingParams()
        )
        return text.tokenizer.decode(output.tokens)

    return answer


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Wait until a condition holds; AssertionError with its name if it never does."""

    async def wait(condition: Callable[[], Any], timeout_s: float = 5.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "the condition never came true"
            await asyncio.sleep(0.002)

    return wait
