"""`luce bench` against the real HTTP application: what it counts is what the server did."""

from __future__ import annotations

import asyncio
import itertools
import json

import aiohttp
import pytest

from luce_core.bench.client import Client
from luce_core.bench.http_bench import run
from luce_core.bench.load import waves
from luce_core.bench.prompts import Prompts
from luce_core.cli import main
from luce_core.testing.fake_engine import FakeEngine
from luce_core.testing.fake_server import FakeServer


def silent(text: str) -> None:
    """What the run says on its way."""


async def luce(*words: object) -> int:
    """The command in a thread, since the server runs on this one's loop."""
    return await asyncio.to_thread(main, [str(word) for word in words])


async def test_counts_are_exactly_what_the_server_generated(options) -> None:
    finished = []
    async with FakeServer(FakeEngine(slots=4), on_finished=[finished.append]) as server:
        wanted = options(server.url, "--levels", "1,3", "--tokens", 9, "--repeats", 2)
        results = await run(wanted, silent)
        await server.check_leaks()
    greeting, *measured = [summary.completion_tokens for summary in finished]
    assert greeting == 1
    assert measured == [9] * (1 + 3) * 2
    assert [m.tally.requests for m in results.all] == [1, 1, 3, 3]
    for measurement in results.all:
        figures = measurement.figures
        assert measurement.tally.is_clean
        assert not measurement.tally.uncounted
        tokens = figures["tok_s"] * figures["seconds"]
        assert abs(tokens - 9 * measurement.clients) < 1e-6
    lengths = {summary.prompt_tokens for summary in finished}
    assert results.levels[1][0][0].figures["prompt_tokens"] in lengths


async def test_the_warm_up_is_not_in_the_figures(options) -> None:
    finished = []
    async with FakeServer(FakeEngine(slots=4), on_finished=[finished.append]) as server:
        results = await run(options(server.url, "--levels", "1,2", "--warmup", 3), silent)
        await server.quiet()
    assert len(finished) == 1 + 3 * 2 + (1 + 2)
    assert sum(m.tally.requests for m in results.all) == 3


async def test_the_next_wave_waits_for_the_last_answer(options) -> None:
    async with FakeServer(FakeEngine(slots=8, step_ms=5.0)) as server, aiohttp.ClientSession() as s:
        client = Client(s, server.url, options(server.url), seed=0)
        spans = await waves(client, Prompts(0).take(9), clients=3, tokens=5)
    assert [len(span.answers) for span in spans] == [3, 3, 3]
    for before, after in itertools.pairwise(spans):
        assert max(a.last for a in before.answers) < min(a.sent for a in after.answers)


@pytest.mark.parametrize("mode", ["waves", "loop"])
async def test_as_many_requests_run_at_once_as_there_are_clients(options, mode) -> None:
    engine = FakeEngine(slots=8, step_ms=5.0)
    async with FakeServer(engine) as server:
        words = ("--levels", 3, "--rounds", 4, "--tokens", 5, "--mode", mode)
        results = await run(options(server.url, *words), silent)
        await server.quiet()
    assert sum(m.tally.requests for m in results.all) == 12
    assert max(len(plan.slot_ids) for plan in engine.plans) == 3


async def test_answers_cut_by_the_context_are_short(options) -> None:
    async with FakeServer(FakeEngine(max_context=128)) as server:
        results = await run(options(server.url, "--tokens", 100, "--levels", 2), silent)
        code = await luce("bench", server.url, "--tokens", 100, "--levels", 2, "--repeats", 1)
    (measurement,) = results.all
    assert measurement.tally.short == 2
    assert measurement.tally.errors == 0
    assert code == 1


async def test_refused_requests_are_errors_with_their_reason(options, capsys) -> None:
    engine = FakeEngine(slots=1, step_ms=5.0)
    async with FakeServer(engine, settings={"max_queue": 0}) as server:
        results = await run(options(server.url, "--levels", 3), silent)
        code = await luce("bench", server.url, "--levels", 3, "--repeats", 1, "--tokens", 8)
    (measurement,) = results.all
    assert (measurement.tally.requests, measurement.tally.errors) == (3, 2)
    assert measurement.tally.first_error.startswith("HTTP 429")
    assert code == 1
    assert "first error: HTTP 429" in capsys.readouterr().out


async def test_an_engine_that_fails_in_a_stream_is_an_error(options) -> None:
    engine = FakeEngine()
    engine.fail_at("step", after=4)
    async with FakeServer(engine) as server:
        results = await run(options(server.url), silent)
    (measurement,) = results.all
    assert measurement.tally.errors == 1
    assert "engine_error" in measurement.tally.first_error
    assert measurement.figures["tok_s"] is None


async def test_two_servers_take_turns_with_the_same_prompts(options) -> None:
    order: list[str] = []
    engines = FakeEngine(slots=4), FakeEngine(slots=4)
    async with (
        FakeServer(engines[0], on_finished=[lambda s: order.append("A")]) as a,
        FakeServer(engines[1], on_finished=[lambda s: order.append("B")]) as b,
    ):
        wanted = options(a.url, "--vs", b.url, "--levels", "1,2", "--repeats", 3)
        results = await run(wanted, silent)
        await a.quiet()
        await b.quiet()
    assert "".join(order) == "AB" + 3 * ("AB" + "AABB")
    prompts = [
        sorted(p.tokens for plan in engine.plans for p in plan.prefill) for engine in engines
    ]
    assert prompts[0] == prompts[1]
    assert len(set(prompts[0])) == 1 + 3 * 3
    assert [len(measured) for measured in results.levels[2]] == [3, 3]


async def test_of_two_servers_the_faster_one_wins(options, tmp_path, capsys) -> None:
    file = tmp_path / "bench.json"
    async with (
        FakeServer(FakeEngine(step_ms=1.0)) as fast,
        FakeServer(FakeEngine(step_ms=20.0)) as slow,
    ):
        words = ("--levels", "1,2", "--tokens", 12, "--repeats", 2, "--json", file, "--key", "s3c")
        code = await luce("bench", fast.url, "--vs", slow.url, *words)
    assert code == 0
    out = capsys.readouterr().out
    assert f"A: {fast.url} (fake)" in out
    assert "A/B" in out
    assert "s3c" not in file.read_text()
    written = json.loads(file.read_text())
    assert set(written) == {"options", "seed", "models", "levels"}
    assert written["models"] == ["fake", "fake"]
    assert written["options"]["tokens"] == 12
    for level, clients in zip(written["levels"], (1, 2), strict=True):
        assert set(level) == {"clients", "servers", "ratios"}
        assert level["clients"] == clients
        assert level["ratios"]["tok_s"]["median"] > 3
        assert level["ratios"]["itl_ms"]["median"] < 0.5
        assert len(level["ratios"]["tok_s"]["pairs"]) == 2
        for server in level["servers"]:
            assert set(server) == {"median", "repeats"}
            for repeat in server["repeats"]:
                assert (repeat["requests"], repeat["errors"], repeat["short"]) == (clients, 0, 0)
                assert repeat["first_error"] is None
                assert repeat["itl_ms"] <= repeat["itl_p95_ms"] <= repeat["itl_max_ms"]
                assert repeat["ttft_ms"] <= repeat["ttft_p95_ms"]
                assert repeat["tok_s"] <= repeat["win_tok_s"]


async def test_times_are_those_of_the_server(options) -> None:
    """Each step takes 20 ms, so a token follows another after no less."""
    async with FakeServer(FakeEngine(step_ms=20.0)) as server:
        results = await run(options(server.url, "--levels", 2, "--api", "chat"), silent)
    figures = results.all[0].figures
    assert 20 <= figures["ttft_ms"] < 200
    assert 19 < figures["itl_ms"] < 60


async def test_prompts_are_padded_to_the_length_that_the_server_counts(options) -> None:
    engine = FakeEngine(max_context=4096)
    async with FakeServer(engine, pool_blocks=1024) as server:
        words = ("--prompt-tokens", 700, "--levels", 2, "--api", "chat")
        results = await run(options(server.url, *words), silent)
        code = await luce("bench", server.url, "--prompt-tokens", 20)
    (measurement,) = results.all
    # A token is a byte here, a word up to seven.
    assert abs(measurement.figures["prompt_tokens"] - 700) <= 7
    assert code == 1


async def test_gaps_of_a_join_are_those_beside_the_newcomers_prompt(options) -> None:
    """A step takes as long as its chunk of the prompt: two steps of 100 tokens, then one."""
    engine = FakeEngine(slots=4, chunk=100, step_ms=10.0, max_context=2048)
    async with FakeServer(engine, pool_blocks=512) as server:
        words = ("--join", 300, "--levels", 2, "--tokens", 30)
        results = await run(options(server.url, *words), silent)
        await server.check_leaks()
    (measurement,) = results.all
    figures = measurement.figures
    assert measurement.tally.requests == 3
    assert measurement.tally.is_clean
    assert abs(figures["prompt_tokens"] - 300) <= 7
    steps = [p for p in engine.plans if p.prefill and len(p.decode) == 2]
    assert len(steps) >= 3
    assert figures["ttft_ms"] >= 30
    assert 9 < figures["itl_ms"] < 60


async def test_a_server_that_is_not_there_is_named(capsys) -> None:
    assert await luce("bench", "127.0.0.1:9") == 1
    assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err


async def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path, capsys) -> None:
    file = tmp_path / "none" / "bench.json"
    assert await luce("bench", "127.0.0.1:9", "--json", file) == 1
    assert "there is no folder" in capsys.readouterr().err
