"""A client that does not read is cut off; the engine and the other clients never wait for it."""

from __future__ import annotations

import asyncio

from luce_core.request import State
from luce_core.testing.byte_vocab import EOS
from luce_core.testing.fake_engine import FakeEngine, HashMind
from luce_core.testing.fake_server import FakeServer


def never_reads(raw, server):
    """A connection whose kernel buffers are small and whose stream is not read."""
    return raw(server, receive_buffer=4096, limit=1024)


async def test_a_reader_over_the_byte_limit_is_cut_and_others_are_unaffected(
    client, raw, eventually, logprob_engine, solo
):
    engine = logprob_engine(HashMind(), slots=2, max_context=60_000)
    settings = {"reader_buffer_bytes": 100_000}
    async with FakeServer(engine, pool_blocks=4096, settings=settings) as server:
        stuck = await never_reads(raw, server)
        body = {"prompt": "a", "max_tokens": 50_000, "logprobs": 20, "stream": True}
        stuck.send("/v1/completions", body)
        events = await client.stream_completion(server, "other", max_tokens=200)
        assert events.content() == solo("other", max_tokens=200, raw=True)
        await eventually(lambda: server.metrics.aborted_readers["buffer_bytes"] == 1, timeout_s=20)
        await server.check_leaks()
        assert server.metrics.cancelled_in[State.DECODE] == 1
        assert not server.runtime.hub._readers


async def test_a_reader_that_takes_nothing_for_too_long_is_cut(
    client, raw, eventually, logprob_engine, solo
):
    engine = logprob_engine(HashMind(), slots=2, max_context=60_000)
    settings = {"reader_buffer_bytes": 1 << 30, "reader_timeout": 0.3}
    async with FakeServer(engine, pool_blocks=4096, settings=settings) as server:
        stuck = await never_reads(raw, server)
        body = {"prompt": "a", "max_tokens": 50_000, "logprobs": 20, "stream": True}
        stuck.send("/v1/completions", body)
        await eventually(
            lambda: server.metrics.aborted_readers["stalled_reader"] == 1, timeout_s=20
        )
        await server.check_leaks()
        await eventually(lambda: not server.runtime.hub._readers)
        reply = await client.complete(server, "other", max_tokens=50)
        assert reply.json["choices"][0]["text"] == solo("other", max_tokens=50, raw=True)


async def test_a_whole_reply_that_is_not_read_does_not_hold_its_connection_for_ever(
    raw, body_of, eventually, logprob_engine
):
    engine = logprob_engine(HashMind(), max_context=8192)
    async with FakeServer(engine, pool_blocks=1024, settings={"reader_timeout": 0.3}) as server:
        stuck = await never_reads(raw, server)
        body = body_of("a", max_tokens=8000, logprobs=True, top_logprobs=20)
        stuck.send("/v1/chat/completions", body)
        await eventually(
            lambda: server.metrics.aborted_readers["stalled_reader"] == 1, timeout_s=20
        )
        await server.check_leaks()


async def test_a_slow_reader_that_keeps_reading_gets_everything(raw, logprob_engine, parse_events):
    engine = logprob_engine(HashMind(), max_context=4096)
    async with FakeServer(engine, settings={"reader_timeout": 0.5}) as server:
        slow = await never_reads(raw, server)
        body = {"prompt": "a", "max_tokens": 500, "logprobs": 20, "stream": True}
        slow.send("/v1/completions", body, close=True)
        data = b""
        while piece := await slow.reader.read(20_000):
            data += piece
            await asyncio.sleep(0.002)
        assert b"data: [DONE]" in data
        assert server.metrics.aborted_readers.total() == 0
        await server.check_leaks()


async def test_a_finished_choice_is_not_taken_for_a_stalled_reader(client):
    engine = FakeEngine(_FirstChoiceEndsAtOnce(), step_ms=5)
    async with FakeServer(engine, settings={"reader_timeout": 0.2}) as server:
        for stream in (True, False):
            reply = await client.chat(server, n=2, max_tokens=100, stream=stream)
            assert reply.status == 200
            assert '"error"' not in reply.text
        assert server.metrics.aborted_readers.total() == 0
        await server.check_leaks()


class _FirstChoiceEndsAtOnce:
    def next_token(self, context):
        return EOS if context.request.choice_index == 0 else ord("x")
