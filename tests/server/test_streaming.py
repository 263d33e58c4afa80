"""What a streamed reply looks like, event by event."""

from __future__ import annotations

import asyncio

import pytest

from luce_core.server.chunks import ChatChunks
from luce_core.testing.byte_vocab import END_THINK, EOS, THINK, VOCAB_SIZE
from luce_core.testing.fake_engine import FakeEngine, HashMind, ScriptMind
from luce_core.testing.fake_server import FakeServer, byte_text

MIXED = "né→漢👩‍💻"


async def test_first_chunk_carries_the_role_and_the_last_the_finish_reason(client):
    async with FakeServer(FakeEngine(ScriptMind.text("Hello"))) as server:
        events = await client.stream_chat(server)
        first, *middle, last = events.choices()
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert all(choice["delta"].keys() == {"content"} for choice in middle)
        assert all(choice["finish_reason"] is None for choice in middle)
        assert events.content() == "Hello"
        assert "" not in events.deltas()
        assert last["delta"] == {}
        assert last["finish_reason"] == "stop"
        assert events.done
        assert not events.after_done


async def test_every_chunk_has_the_same_id_time_model_and_object(client):
    async with FakeServer() as server:
        events = await client.stream_chat(
            server, max_tokens=20, model="whatever", stream_options={"include_usage": True}
        )
        heads = {(c["id"], c["created"], c["model"], c["object"]) for c in events.chunks}
        ((_, _, model, kind),) = heads
        assert (model, kind) == ("fake", "chat.completion.chunk")
        assert all(isinstance(chunk["choices"], list) for chunk in events.chunks)


async def test_stream_headers_forbid_caching_and_buffering(client):
    async with FakeServer() as server:
        reply = await client.chat(server, stream=True, max_tokens=2)
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        assert reply.headers["Cache-Control"] == "no-cache"
        assert reply.headers["X-Accel-Buffering"] == "no"
        assert "Content-Encoding" not in reply.headers


async def test_streamed_and_whole_replies_have_the_same_text_and_usage(client, solo):
    async with FakeServer() as server:
        usage = {"include_usage": True}
        for route, stream in (
            (client.chat, client.stream_chat),
            (client.complete, client.stream_completion),
        ):
            whole = (await route(server, "same", max_tokens=30)).json
            events = await stream(server, "same", max_tokens=30, stream_options=usage)
            choice = whole["choices"][0]
            text = choice["message"]["content"] if "message" in choice else choice["text"]
            assert events.content() == text
            assert text == solo("same", max_tokens=30, raw=route == client.complete)
            assert events.usage == whole["usage"]
            assert events.finish() == choice["finish_reason"] == "length"


@pytest.mark.parametrize("route", ["chat", "completion"])
async def test_no_usage_and_no_empty_choices_unless_asked_for(client, route):
    async with FakeServer() as server:
        stream = client.stream_chat if route == "chat" else client.stream_completion
        for options in ({}, {"stream_options": {"include_usage": False}}):
            events = await stream(server, max_tokens=5, **options)
            assert all(chunk["choices"] and "usage" not in chunk for chunk in events.chunks)


@pytest.mark.parametrize("n", [1, 2, 3])
async def test_usage_comes_once_and_last_with_empty_choices_and_the_sum(client, n):
    async with FakeServer() as server:
        events = await client.stream_chat(
            server, "abc", n=n, max_tokens=7, stream_options={"include_usage": True}
        )
        assert [bool(chunk.get("usage")) for chunk in events.chunks[:-1]].count(True) == 0
        last = events.chunks[-1]
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 7 * n
        prompt = last["usage"]["prompt_tokens"]
        alone = (await client.chat(server, "abc", max_tokens=1)).json["usage"]["prompt_tokens"]
        assert prompt == alone
        assert last["usage"]["total_tokens"] == prompt + 7 * n
        for index in range(n):
            assert events.finish(index) == "length"
            assert events.choices(index)[0]["delta"]["role"] == "assistant"


async def test_running_usage_is_sent_in_every_chunk_only_when_asked_for(client):
    async with FakeServer() as server:
        options = {"include_usage": True, "continuous_usage_stats": True}
        events = await client.stream_chat(server, max_tokens=4, stream_options=options)
        counts = [chunk["usage"]["completion_tokens"] for chunk in events.chunks]
        assert counts == sorted(counts)
        assert counts[-1] == counts[-2] == 4


async def test_multi_byte_characters_are_never_cut(client):
    async with FakeServer(FakeEngine(ScriptMind.text(MIXED))) as server:
        events = await client.stream_chat(server)
        assert events.content() == MIXED
        assert "" not in events.deltas()
        assert "�" not in events.content()
        assert (await client.chat(server)).json["choices"][0]["message"]["content"] == MIXED


async def test_reasoning_is_streamed_under_both_names(client):
    script = (THINK, *b"plan", END_THINK, *b"done", EOS)
    engine = FakeEngine(ScriptMind(lambda request: script))
    async with FakeServer(engine, text=byte_text(parser="think")) as server:
        events = await client.stream_chat(server, stream_options={"include_usage": True})
        deltas = [choice["delta"] for choice in events.choices()]
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "plan"
        assert "".join(d.get("reasoning", "") for d in deltas) == "plan"
        assert events.content() == "done"
        assert events.usage["completion_tokens_details"]["reasoning_tokens"] == 6
        message = (await client.chat(server)).json["choices"][0]["message"]
        assert message["reasoning_content"] == message["reasoning"] == "plan"
        assert message["content"] == "done"


async def test_pings_flow_while_queued_while_in_prefill_and_while_text_is_withheld(raw, body_of):
    engine = FakeEngine(ScriptMind.text("abSTO", end=(ord("X"), EOS)), slots=1)
    async with FakeServer(engine, settings={"ping_interval": 0.05}) as server:
        engine.hold()
        first = await raw(server)
        first.send("/v1/chat/completions", body_of("a", stream=True, stop=["STOP"]), close=True)
        await asyncio.to_thread(engine.wait_held)
        queued = await raw(server)
        queued.send("/v1/chat/completions", body_of("b", stream=True), close=True)
        for waiting in (first, queued):
            await waiting.until(b"\r\n\r\n", *[b": ping\n\n"] * 3, timeout_s=3)
        # Now hold it where "STO" is withheld: 2 of 5 tokens are text that was let through.
        engine.mind = _HoldAfter(engine, ScriptMind.text("abSTO", end=(ord("X"), EOS)), 5)
        engine.release()
        await first.until(b'b"},', *[b": ping\n\n"] * 3, timeout_s=3)
        engine.release()
        tail = (await first.rest()).decode()
        assert '"content":"STOX"' in tail
        assert tail.index("[DONE]") > tail.rindex("STOX")
        assert "ping" not in tail[tail.index("[DONE]") :]
        await queued.rest()
        await server.check_leaks()


class _HoldAfter:
    """Blocks the engine once, in the step after the given number of tokens."""

    def __init__(self, engine: FakeEngine, mind: ScriptMind, tokens: int) -> None:
        self._engine, self._mind, self._tokens = engine, mind, tokens
        self._held = False

    def next_token(self, context):
        if len(context.request.generated) == self._tokens - 1 and not self._held:
            self._held = True
            self._engine.hold()
        return self._mind.next_token(context)


async def test_engine_error_after_headers_is_an_event_without_done_or_finish_reason(client):
    engine = FakeEngine(HashMind())
    engine.fail_at("row", after=5, error=RuntimeError("engine_output_invalid: NaN in logits"))
    async with FakeServer(engine) as server:
        reply = await client.chat(server, stream=True, max_tokens=50)
        assert reply.status == 200
        assert "[DONE]" not in reply.text
        blocks = [block for block in reply.text.split("\n\n") if block]
        assert '"code":"engine_output_invalid"' in blocks[-1]
        assert '"finish_reason":"' not in reply.text
        whole = await client.chat(server, max_tokens=5)
        assert whole.status == 200
        engine.fail_at("row", error=RuntimeError("engine_output_invalid: NaN in logits"))
        failed = await client.chat(server, max_tokens=5)
        assert failed.status == 500
        assert failed.error["code"] == "engine_output_invalid"
        assert failed.error["type"] == "server_error"
        await server.check_leaks()


async def test_exception_text_of_the_engine_is_not_told_to_clients(client):
    engine = FakeEngine(HashMind())
    async with FakeServer(engine) as server:
        for place in ("step", "commit", "admit"):
            engine.fail_at(place, error=RuntimeError("secret at 0x7f00deadbeef"))
            reply = await client.chat(server, max_tokens=3)
            assert reply.status in (500, 503)
            assert "secret" not in reply.text
            assert "0x7f" not in reply.text
        assert (await client.chat(server, max_tokens=3)).status == 200


async def test_one_failing_choice_ends_the_reply_and_cancels_the_others(client):
    engine = FakeEngine(HashMind(), slots=2)
    engine.fail_at("row", after=9)
    async with FakeServer(engine) as server:
        reply = await client.chat(server, stream=True, n=2, max_tokens=500)
        assert "[DONE]" not in reply.text
        assert reply.text.count('"error"') == 1
        engine.fail_at("row", after=9)
        assert (await client.chat(server, n=2, max_tokens=500)).status == 500
        await server.check_leaks()


async def test_a_bug_after_the_headers_is_told_as_an_internal_error_only(client, monkeypatch):
    def broken(self, delta):
        raise ValueError("secret")

    monkeypatch.setattr(ChatChunks, "text", broken)
    async with FakeServer() as server:
        reply = await client.chat(server, stream=True, max_tokens=9)
        assert reply.status == 200
        assert '"code":"internal_error"' in reply.text
        assert "secret" not in reply.text
        assert "[DONE]" not in reply.text
        await server.check_leaks()


async def test_ids_beyond_the_tokenizer_are_no_text_and_no_failure(client, logprob_engine):
    unknown = VOCAB_SIZE + 20
    script = (ord("a"), unknown, ord("b"), EOS)
    engine = logprob_engine(ScriptMind(lambda request: script), vocab_size=VOCAB_SIZE + 36)
    async with FakeServer(engine) as server:
        fields = {"logit_bias": {str(unknown): 100}, "logprobs": True, "top_logprobs": 5}
        events = await client.stream_chat(server, **fields)
        assert (events.content(), events.finish()) == ("ab", "stop")
        whole = (await client.chat(server, **fields)).json["choices"][0]
        entries = whole["logprobs"]["content"]
        assert [entry["token"] for entry in entries] == ["a", "", "b", "<eos>"]
        assert entries[1]["bytes"] == []
        legacy = (await client.complete(server, logprobs=1)).json["choices"][0]["logprobs"]
        assert legacy["text_offset"] == [0, 1, 1, 2]
