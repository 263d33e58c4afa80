"""The official SDK, without retries, sees what it would see from the reference service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest

from luce_core.request import State
from luce_core.testing.fake_engine import FakeEngine, HashMind, ScriptMind
from luce_core.testing.fake_server import FakeServer

HI = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def sdk(server: FakeServer, key: str = "none") -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=10
    ) as client:
        yield client


async def test_chat_and_completion_whole_and_streamed():
    async with FakeServer(FakeEngine(ScriptMind.text("Hello!"))) as server, sdk(server) as client:
        reply = await client.chat.completions.create(model="fake", messages=HI)
        assert reply.choices[0].message.content == "Hello!"
        assert reply.choices[0].finish_reason == "stop"
        assert reply.usage.completion_tokens == 7
        assert reply.usage.prompt_tokens_details.cached_tokens == 0
        text = await client.completions.create(model="fake", prompt="hi")
        assert text.choices[0].text == "Hello!"
        pieces, finish, usage = [], None, None
        stream = await client.chat.completions.create(
            model="fake", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                finish = choice.finish_reason or finish
            usage = chunk.usage or usage
        assert ("".join(pieces), finish, usage.completion_tokens) == ("Hello!", "stop", 7)
        stream = await client.completions.create(model="fake", prompt="hi", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello!"


async def test_several_choices_and_prompts():
    async with FakeServer(FakeEngine(HashMind())) as server, sdk(server) as client:
        reply = await client.chat.completions.create(model="m", messages=HI, n=2, max_tokens=5)
        assert [choice.index for choice in reply.choices] == [0, 1]
        assert reply.model == "fake"
        stream = await client.chat.completions.create(
            model="m", messages=HI, n=2, max_tokens=5, stream=True
        )
        texts = {0: "", 1: ""}
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        assert list(texts.values()) == [c.message.content for c in reply.choices]
        many = await client.completions.create(model="m", prompt=["a", "b"], n=2, max_tokens=3)
        assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
        assert many.choices[0].text == many.choices[1].text != many.choices[2].text
        assert many.usage.prompt_tokens == 2


async def test_logprobs_in_both_shapes(logprob_engine):
    engine = logprob_engine(ScriptMind.text("hé"))
    async with FakeServer(engine) as server, sdk(server) as client:
        whole = await client.chat.completions.create(
            model="m", messages=HI, logprobs=True, top_logprobs=2
        )
        stream = await client.chat.completions.create(
            model="m", messages=HI, logprobs=True, top_logprobs=2, stream=True
        )
        streamed = []
        async for chunk in stream:
            if chunk.choices[0].logprobs:
                streamed += chunk.choices[0].logprobs.content
        entries = whole.choices[0].logprobs.content
        assert streamed == entries
        assert [entry.bytes for entry in entries[:3]] == [[104], [0xC3], [0xA9]]
        assert entries[0].token == "h"
        assert entries[0].logprob == -0.5
        assert [top.logprob for top in entries[0].top_logprobs] == [-0.5, -1.5]
        assert entries[3].token == "<eos>"
        text = await client.completions.create(model="m", prompt="x", logprobs=1)
        legacy = text.choices[0].logprobs
        assert legacy.tokens[0] == "h"
        assert legacy.token_logprobs == [-0.5] * 4
        assert legacy.top_logprobs[0] == {"h": -0.5}
        assert legacy.text_offset[:2] == [0, 1]


async def test_stop_strings_and_echo():
    engine = FakeEngine(ScriptMind.text("one END two"))
    async with FakeServer(engine) as server, sdk(server) as client:
        reply = await client.chat.completions.create(model="m", messages=HI, stop=["END"])
        assert reply.choices[0].message.content == "one "
        text = await client.completions.create(model="m", prompt="say ", stop="END", echo=True)
        assert text.choices[0].text == "say one "
        stream = await client.completions.create(
            model="m", prompt="say ", stop="END", echo=True, stream=True
        )
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "say one "
        only = await client.completions.create(model="m", prompt="say", echo=True, max_tokens=0)
        assert (only.choices[0].text, only.usage.completion_tokens) == ("say", 0)


async def test_closing_a_stream_cancels_its_request():
    engine = FakeEngine(HashMind(), step_ms=2, max_context=4096)
    async with FakeServer(engine) as server, sdk(server) as client:
        stream = await client.chat.completions.create(
            model="m", messages=HI, max_tokens=3000, stream=True
        )
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        await server.check_leaks()
        assert server.metrics.cancelled_in[State.DECODE] == 1


async def test_each_refusal_is_its_own_exception():
    engine = FakeEngine(HashMind(), max_context=64, slots=1)
    settings = {"api_key": ("right",), "strict_model_name": True, "max_queue": 0}
    async with FakeServer(engine, settings=settings) as server:
        async with sdk(server, "wrong") as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                await client.models.list()
            assert caught.value.code == "invalid_api_key"
        async with sdk(server, "right") as client:
            create = client.chat.completions.create
            assert [model.id async for model in client.models.list()] == ["fake"]
            with pytest.raises(openai.NotFoundError) as caught:
                await create(model="other", messages=HI)
            assert caught.value.code == "model_not_found"
            with pytest.raises(openai.NotFoundError):
                await client.embeddings.create(model="fake", input="x")
            with pytest.raises(openai.BadRequestError) as caught:
                await create(model="fake", messages=[{"role": "user", "content": "x" * 99}])
            assert caught.value.code == "context_length_exceeded"
            with pytest.raises(openai.BadRequestError) as caught:
                await create(model="fake", messages=HI, temperature=-1)
            assert caught.value.param == "temperature"
            engine.hold()
            stream = await create(model="fake", messages=HI, stream=True)
            with pytest.raises(openai.RateLimitError) as caught:
                await create(model="fake", messages=HI)
            assert caught.value.code == "queue_full"
            engine.fail_at("row")
            engine.release()
            with pytest.raises(openai.APIError):
                async for _ in stream:
                    pass
            engine.fail_at("row")
            with pytest.raises(openai.InternalServerError):
                await create(model="fake", messages=HI, max_tokens=3)
            await server.check_leaks()


async def test_pings_are_invisible_to_the_sdk():
    engine = FakeEngine(ScriptMind.text("late"))
    async with FakeServer(engine, settings={"ping_interval": 0.02}) as server:
        async with sdk(server) as client:
            engine.hold()
            stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
            await asyncio.sleep(0.15)
            engine.release()
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == "late"
