"""What servers may do that luce's own does not, and what the requests look like."""

from __future__ import annotations

import pytest

from luce_core.bench.http_bench import run
from luce_core.errors import ConfigError

USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 8}}


def silent(text: str) -> None:
    """What the run says on its way."""


def text(word: str, **more: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": word, **more}]}


async def test_each_request_has_a_connection_of_its_own_unless_told(options, scripted) -> None:
    scripted.say(text("a"), USAGE, b"[DONE]")
    await run(options(scripted.url, "--rounds", 3), silent)
    assert len(set(scripted.ports)) == 1 + 3
    scripted.ports.clear()
    await run(options(scripted.url, "--rounds", 3, "--keepalive"), silent)
    assert len(set(scripted.ports)) == 1


async def test_requests_ask_for_exact_counts(options, scripted) -> None:
    scripted.say(text("a"), USAGE, b"[DONE]")
    await run(options(scripted.url, "--key", "k", "--model", "m"), silent)
    *_, body = scripted.bodies
    assert body["prompt"].startswith("[")
    del body["prompt"]
    assert body == {
        "model": "m",
        "max_tokens": 8,
        "temperature": 0,
        "seed": 7,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert set(scripted.keys) == {"Bearer k"}


async def test_without_usage_pieces_of_text_are_counted_and_said_to_be(options, scripted) -> None:
    scripted.say(*[text("a")] * 8, b"[DONE]")
    (measurement,) = (await run(options(scripted.url), silent)).all
    assert measurement.tally.uncounted == 1
    assert measurement.tally.short == 0
    scripted.say(*[text("a")] * 7, b"[DONE]")
    (measurement,) = (await run(options(scripted.url), silent)).all
    assert measurement.tally.short == 1


async def test_several_tokens_in_a_piece_are_counted_by_usage(options, scripted) -> None:
    scripted.say(text("abcd"), text("efgh"), USAGE, b"[DONE]")
    (measurement,) = (await run(options(scripted.url), silent)).all
    assert measurement.tally.is_clean
    assert not measurement.tally.uncounted


async def test_reasoning_is_output_too(options, scripted) -> None:
    delta = {"choices": [{"delta": {"reasoning_content": "hm"}}]}
    scripted.say({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, delta, USAGE)
    (measurement,) = (await run(options(scripted.url, "--api", "chat"), silent)).all
    assert measurement.tally.is_clean


async def test_tokens_without_text_come_with_the_end(options, scripted) -> None:
    scripted.say(text("", finish_reason="length"), USAGE, b"[DONE]")
    (measurement,) = (await run(options(scripted.url), silent)).all
    assert measurement.tally.is_clean
    assert measurement.figures["ttft_ms"] > 0
    assert measurement.figures["itl_ms"] is None


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([{"error": {"message": "lost"}}], "lost"),
        ([b"{no json"], "JSONDecodeError"),
        ([b"[1, 2]"], "Error"),
        ([b'{"choices": [3]}'], "Error"),
        ([b"x" * (1 << 20)], "LineTooLong"),
        ([USAGE, b"[DONE]"], "no text"),
    ],
)
async def test_nonsense_is_an_error_and_never_raises(options, scripted, events, problem) -> None:
    scripted.say(*events)
    with pytest.raises(ConfigError, match=problem):
        await run(options(scripted.url), silent)


async def test_redirects_are_not_followed(options, scripted) -> None:
    """A key must not travel to where the user has not sent it."""
    scripted.status, scripted.location = 307, f"{scripted.url}/v1/chat/completions"
    with pytest.raises(ConfigError, match="HTTP 307"):
        await run(options(scripted.url, "--key", "k"), silent)
    assert len(scripted.bodies) == 1


async def test_an_answer_that_takes_too_long_is_an_error(options, scripted) -> None:
    scripted.say(text("a"), text("b"), USAGE)
    scripted.pause_s = 5.0
    with pytest.raises(ConfigError, match="Timeout"):
        await run(options(scripted.url, "--timeout", 0.2), silent)
