"""One pipeline: stops, usage, reasoning and log-probabilities agree however tokens arrive."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce_core.plan import TokenLogprob
from luce_core.text.detokenizer import Detokenizer
from luce_core.text.output_parser import (
    OutputParser,
    Piece,
    PieceKind,
    PlainParser,
    ThinkParser,
)
from luce_core.text.pipeline import CallDelta, TextDelta, TextPipeline, join_calls
from luce_core.text.stop_strings import StopSet, StopStrings
from luce_core.text.tools import CallingParser

from .vocabularies import BYTES, byte_tokenizer

TOKENIZER = byte_tokenizer()
EOS = len(BYTES) + 2
THINK, END_THINK = len(BYTES) + 3, len(BYTES) + 4


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, parse_special=True)


def pipeline(stops: list[str] | None = None, parser: OutputParser | None = None) -> TextPipeline:
    matcher = StopStrings(StopSet(stops or []))
    return TextPipeline(Detokenizer(TOKENIZER), matcher, parser or PlainParser())


def entries(ids: list[int]) -> list[TokenLogprob]:
    return [TokenLogprob(token, -float(i)) for i, token in enumerate(ids)]


def joined(deltas: list[TextDelta]) -> tuple[str, str, tuple[TokenLogprob, ...]]:
    return (
        "".join(d.content for d in deltas),
        "".join(d.reasoning for d in deltas),
        tuple(entry for d in deltas for entry in d.logprobs),
    )


def run(
    pipe: TextPipeline, ids: list[int], sizes: list[int], *, logprobs: bool = False
) -> dict[str, Any]:
    """Everything a client sees, the ids pushed in groups of the given sizes."""
    marks = entries(ids)
    deltas: list[TextDelta] = []
    start = 0
    for size in [*sizes, len(ids)]:
        group = slice(start, start + size)
        deltas.append(pipe.push(ids[group], marks[group] if logprobs else None))
        start += size
    deltas.append(pipe.finish())
    content, reasoning, got = joined(deltas)
    return {
        "content": content,
        "reasoning": reasoning,
        "logprobs": got,
        "used": pipe.tokens_used,
        "reasoning_tokens": pipe.reasoning_tokens,
        "stopped": pipe.stopped,
    }


def test_a_stop_string_inside_an_accepted_run_wins_over_what_follows() -> None:
    pipe = pipeline(["STOP"])
    delta = pipe.push(ids_of("abcSTOPdef"))
    assert delta.content == "abc"
    assert pipe.stopped
    assert pipe.tokens_used == 7
    assert pipe.push(ids_of("more")).is_empty
    assert pipe.finish().is_empty
    assert pipe.tokens_used == 7


def test_a_held_back_beginning_is_flushed_when_the_length_ends_first() -> None:
    pipe = pipeline(["STOP"])
    assert pipe.push(ids_of("abcST")).content == "abc"
    assert pipe.finish().content == "ST"
    assert not pipe.stopped
    assert pipe.tokens_used == 5


def test_the_end_token_shows_nothing_and_counts() -> None:
    pipe = pipeline()
    assert pipe.push([*ids_of("hi"), EOS]) == TextDelta("hi")
    assert pipe.finish().is_empty
    assert pipe.tokens_used == 3


def test_characters_stream_whole_and_without_empty_deltas() -> None:
    text = "né→漢👩‍💻"
    for stops in ([], ["zzz"]):
        pipe = pipeline(stops)
        deltas = [pipe.push([token]) for token in ids_of(text)]
        assert [d.content for d in deltas if not d.is_empty] == list(text)


def test_usage_does_not_depend_on_how_many_tokens_a_step_accepts() -> None:
    ids = [THINK, *ids_of("0123456789"), END_THINK, *ids_of("hello"), EOS]
    runs = [
        run(pipeline(parser=ThinkParser()), ids, [size] * len(ids), logprobs=True)
        for size in (1, 4, 7, len(ids))
    ]
    assert all(result == runs[0] for result in runs)
    assert runs[0]["reasoning"] == "0123456789"
    assert runs[0]["content"] == "hello"
    assert runs[0]["used"] == len(runs[0]["logprobs"]) == 18
    assert runs[0]["reasoning_tokens"] == 12


def test_stop_strings_apply_to_reasoning() -> None:
    result = run(pipeline(["STOP"], ThinkParser()), ids_of("<think>abSTOPc</think>d"), [])
    assert (result["reasoning"], result["content"], result["used"]) == ("ab", "", 7)
    assert result["reasoning_tokens"] <= result["used"]


def test_log_probabilities_come_with_their_text_and_never_after_the_stop() -> None:
    ids = ids_of("abSTxSTOPdef")
    marks = entries(ids)
    pipe = pipeline(["STOP"])
    got = [pipe.push([token], [mark]) for token, mark in zip(ids, marks, strict=True)]
    assert [d.logprobs for d in got[:5]] == [
        (marks[0],),
        (marks[1],),
        (),
        (),
        (marks[2], marks[3], marks[4]),
    ]
    assert got[4].content == "STx"
    assert joined([*got, pipe.finish()])[2] == tuple(marks[:9])
    assert pipe.tokens_used == 9


def test_log_probabilities_of_half_a_character_wait_for_it() -> None:
    ids = ids_of("漢")
    marks = entries(ids)
    pipe = pipeline()
    got = [pipe.push([token], [mark]) for token, mark in zip(ids, marks, strict=True)]
    assert [d.logprobs for d in got] == [(), (), tuple(marks)]
    pipe = pipeline()
    ids = ids_of("a漢")
    marks = entries(ids)
    assert pipe.push(ids[:2], marks[:2]) == TextDelta("a", "", (marks[0],))
    assert pipe.push(ids[2:], marks[2:]) == TextDelta("漢", "", tuple(marks[1:]))


@pytest.mark.parametrize("stops", [[], ["zz"]])
def test_log_probabilities_of_silent_tokens_come_at_the_end(stops: list[str]) -> None:
    ids = [*ids_of("a"), EOS]
    marks = entries(ids)
    pipe = pipeline(stops)
    assert pipe.push(ids[:1], marks[:1]) == TextDelta("a", "", (marks[0],))
    assert pipe.push(ids[1:], marks[1:]).is_empty
    assert pipe.finish() == TextDelta("", "", (marks[1],))


@given(
    st.lists(st.integers(0, TOKENIZER.vocab_size + 3), max_size=24)
    | st.text(alphabet="aSTOP<think>/é漢\n", max_size=24).map(ids_of),
    st.lists(st.sampled_from(["STOP", "ST", "a", "漢", "</think>", "TO"]), max_size=3),
    st.sampled_from(["plain", "think", "inside"]),
    st.booleans(),
    st.lists(st.integers(0, 5), max_size=24),
)
def test_any_grouping_of_any_tokens_gives_the_same_answer(
    ids: list[int], stops: list[str], kind: str, logprobs: bool, sizes: list[int]
) -> None:
    def make() -> TextPipeline:
        parser = PlainParser() if kind == "plain" else ThinkParser(starts_inside=kind == "inside")
        return pipeline(stops, parser)

    whole = run(make(), ids, [], logprobs=logprobs)
    assert run(make(), ids, sizes, logprobs=logprobs) == whole
    assert run(make(), ids, [1] * len(ids), logprobs=logprobs) == whole
    assert whole["reasoning_tokens"] <= whole["used"] <= len(ids)
    if logprobs:
        assert [entry.token for entry in whole["logprobs"]] == ids[: whole["used"]]
    if not whole["stopped"]:
        assert whole["used"] == len(ids)
        if kind == "plain":
            assert whole["content"] == TOKENIZER.decode(ids)


def test_text_of_the_first_min_tokens_stops_nothing() -> None:
    pipe = TextPipeline(
        Detokenizer(TOKENIZER), StopStrings(StopSet(["b"])), PlainParser(), min_tokens=3
    )
    text = "".join(pipe.push([token]).content for token in ids_of("abcabc"))
    assert text + pipe.finish().content == "abca"
    assert pipe.tokens_used == 5


class Shouts:
    """A capital letter calls the tool of that name; digits behind it are its arguments."""

    tags: tuple[str, ...] = ()
    in_reasoning = False
    held = 0

    def push(self, text: str) -> list[Piece]:
        kinds = {True: PieceKind.CALL, False: PieceKind.CONTENT}
        return [
            Piece(PieceKind.ARGUMENTS if char.isdigit() else kinds[char.isupper()], char)
            for char in text
        ]

    def flush(self) -> list[Piece]:
        return []


def calls_of(text: str, sizes: list[int], most: int | None = None) -> tuple[Any, ...]:
    pipe = TextPipeline(
        Detokenizer(TOKENIZER),
        StopStrings(StopSet(["STOP"])),
        CallingParser(ThinkParser(), Shouts()),
        most_calls=most,
    )
    ids = ids_of(text)
    deltas: list[TextDelta] = []
    start = 0
    for size in [*sizes, len(ids)]:
        deltas.append(pipe.push(ids[start : start + size]))
        start += size
    deltas.append(pipe.finish())
    content, reasoning, _ = joined(deltas)
    calls = join_calls(call for delta in deltas for call in delta.calls)
    return content, reasoning, calls, pipe.calls, pipe.stopped, pipe.tokens_used


@pytest.mark.parametrize("sizes", [[], [1] * 40, [3] * 10])
def test_calls_are_numbered_across_pushes(sizes: list[int]) -> None:
    text = "<think>A1</think>xA12yB3zC"
    assert calls_of(text, sizes) == (
        "xyz",
        "A1",
        (CallDelta(0, "A", "12"), CallDelta(1, "B", "3"), CallDelta(2, "C")),
        3,
        False,
        len(ids_of(text)),
    )


@pytest.mark.parametrize("sizes", [[], [1] * 40, [3] * 10])
def test_a_call_too_many_ends_the_text(sizes: list[int]) -> None:
    content, _, calls, count, stopped, used = calls_of("xA1yB2z", sizes, 1)
    assert (content, calls, count, stopped) == ("xy", (CallDelta(0, "A", "1"),), 1, True)
    assert used == len("xA1yB")
    assert calls_of("xA1y", sizes, 1)[4] is False
