"""Texts that cannot fit are refused by their length, whoever sends them and where."""

from __future__ import annotations

import pytest

from luce_core.testing.fake_engine import FakeEngine
from luce_core.testing.fake_server import FakeServer

LONG = "word " * 40_000
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "x", "extra": [LONG]}]}, "messages"),
        ("/v1/completions", {"prompt": LONG}, "prompt"),
        ("/v1/completions", {"prompt": ["a", LONG]}, "prompt"),
        ("/tokenize", {"content": LONG}, "content"),
        ("/tokenize", {"prompt": LONG}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
    ],
)
async def test_a_text_that_cannot_fit_is_refused_by_its_length(client, path, body, param) -> None:
    async with FakeServer(FakeEngine(max_context=1024)) as server:
        reply = await client.post(server, path, body)
        assert reply.status == 400
        assert reply.error["code"] == "context_length_exceeded"
        assert reply.error["param"] == param
        assert "20000" in reply.error["message"]
        assert "characters" in reply.error["message"]
        await server.check_leaks()


async def test_a_text_that_may_fit_is_counted_in_tokens(client) -> None:
    async with FakeServer(FakeEngine(max_context=1024)) as server:
        reply = await client.complete(server, "x" * 1024)
        assert "1024 tokens" in reply.error["message"]
        assert (await client.complete(server, "x" * 1000, max_tokens=1)).status == 200
