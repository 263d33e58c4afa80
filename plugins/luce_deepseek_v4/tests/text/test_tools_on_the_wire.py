"""DeepSeek's answers as the OpenAI SDK sees them, from a real socket, streamed and whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest

from luce_core.testing.fake_engine import FakeEngine, ScriptMind
from luce_core.testing.fake_server import FakeServer

from .deepseek_markup import SIZE, TOOLS, calls, deepseek_text, invoke, with_words

HI = [{"role": "user", "content": "hi"}]
TWO_CALLS = "plan</think>Let me look." + calls(
    invoke("weather", ("city", "Rome \U0001f30d", True), ("days", "3", False)),
    invoke("search", ("query", "a b", True), ("filters", "{}", False)),
)
ARGUMENTS = ['{"city": "Rome \U0001f30d", "days": 3}', '{"query": "a b", "filters": {}}']


@asynccontextmanager
async def serve(text: str, **options: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, str]]:
    tokens = with_words(text)
    mind = ScriptMind(lambda request: tokens)
    engine = FakeEngine(mind, max_context=4096, vocab_size=SIZE, **options)
    async with FakeServer(engine, text=deepseek_text()) as server:
        async with openai.AsyncOpenAI(
            base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=10
        ) as client:
            yield client, server.url
        await server.check_leaks()


@pytest.mark.parametrize("drafts", [0, 5])
async def test_two_calls_have_the_shape_that_clients_add_up(drafts: int) -> None:
    async with serve(TWO_CALLS, max_draft=drafts, accept=(0, drafts, 2)) as (client, _):
        stream = await client.chat.completions.create(
            model="m", messages=HI, tools=TOOLS, stream=True
        )
        choices = [choice async for chunk in stream for choice in chunk.choices]
        deltas = [call for choice in choices for call in choice.delta.tool_calls or []]
        heads = [delta for delta in deltas if delta.id is not None]
        assert [(d.index, d.type, d.function.name, d.function.arguments) for d in heads] == [
            (0, "function", "weather", ""),
            (1, "function", "search", ""),
        ]
        assert len({head.id for head in heads}) == 2
        rest = [delta for delta in deltas if delta.id is None]
        assert all(d.type is None and d.function.name is None for d in rest)
        texts = ["".join(d.function.arguments for d in deltas if d.index == i) for i in (0, 1)]
        assert texts == ARGUMENTS
        assert "".join(choice.delta.content or "" for choice in choices) == "Let me look."
        assert [c.finish_reason for c in choices if c.finish_reason] == ["tool_calls"]

        whole = await client.chat.completions.create(model="m", messages=HI, tools=TOOLS)
        message = whole.choices[0].message
        assert whole.choices[0].finish_reason == "tool_calls"
        assert (message.content, message.reasoning_content) == ("Let me look.", "plan")
        assert [call.function.arguments for call in message.tool_calls] == ARGUMENTS


async def test_an_answer_without_thinking_is_content() -> None:
    async with serve("just this") as (client, _):
        off = await client.chat.completions.create(model="m", messages=HI, reasoning_effort="none")
        assert off.choices[0].message.content == "just this"
        on = await client.chat.completions.create(model="m", messages=HI)
        assert on.choices[0].message.reasoning_content == "just this"


async def test_the_source_of_the_format_is_shown() -> None:
    async with (
        serve("x") as (_, url),
        aiohttp.ClientSession() as session,
        session.get(url + "/props") as reply,
    ):
        assert "builtin deepseek_v4" in await reply.text()
