"""Stop strings are found across pieces, and nothing else is held back or swallowed."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce_core.text.stop_strings import StopSet, StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool, list[str]]:
    """All text, whether it stopped, and what came out after each piece."""
    matcher = StopStrings(StopSet(stops))
    out = [matcher.push(piece) for piece in pieces]
    stopped = matcher.stopped
    return "".join(out) + ("" if stopped else matcher.flush()), stopped, out


def expected(stops: list[str], text: str) -> tuple[str, bool]:
    """The definition: the earliest end, then the longest stop that ends there."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if hits:
            return text[: end - max(map(len, hits))], True
    return text, False


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "stopped"),
    [
        (["</s>"], ["Hello </", "s", "> tail"], "Hello ", True),
        (["</s>"], ["a </", "b> c"], "a </b> c", False),
        (["ab", "abc"], ["xabc"], "x", True),
        (["abc", "bc"], ["xabc"], "x", True),
        (["abcdX", "bc"], ["abcdX"], "a", True),
        (["aab"], ["a", "a", "a", "b"], "a", True),
        (["STOP"], ["abcSTOPdef"], "abc", True),
        (["漢字"], ["漢", "字x"], "", True),
        ([], ["any", "thing"], "anything", False),
        ([""], ["any"], "any", False),
    ],
)
def test_text_ends_before_the_first_stop_string(
    stops: list[str], pieces: list[str], text: str, stopped: bool
) -> None:
    assert run(stops, pieces)[:2] == (text, stopped)
    joined = "".join(pieces)
    assert run(stops, [joined])[:2] == (text, stopped)
    assert run(stops, list(joined))[:2] == (text, stopped)


def test_only_a_possible_beginning_is_held_back() -> None:
    matcher = StopStrings(StopSet(["</s>", "END"]))
    assert matcher.push("Hello <") == "Hello "
    assert matcher.held == 1
    assert matcher.push("b") == "<b"
    assert matcher.held == 0
    assert matcher.push("E") == ""
    assert matcher.flush() == "E"


def test_nothing_comes_out_after_a_stop() -> None:
    matcher = StopStrings(StopSet(["."]))
    assert matcher.push("a.b") == "a"
    assert matcher.push("c.d") == ""
    assert matcher.flush() == ""
    assert matcher.stopped


@given(
    st.lists(st.text(alphabet="ab<", max_size=4), max_size=4),
    st.lists(st.text(alphabet="ab<c", max_size=5), max_size=8),
)
def test_any_cut_of_any_text_gives_the_defined_outcome(stops: list[str], pieces: list[str]) -> None:
    text, stopped, out = run(stops, pieces)
    assert (text, stopped) == expected(stops, "".join(pieces))
    # What is held back could still become a stop string.
    seen = ""
    for piece, emitted in zip(pieces, _running(out), strict=True):
        seen += piece
        if stopped and len(seen) > len(text):
            break
        held = seen[len(emitted) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def _running(pieces: list[str]) -> list[str]:
    return ["".join(pieces[: i + 1]) for i in range(len(pieces))]


def test_the_largest_stop_lists_stay_linear() -> None:
    stops = ["a" * 1023 + chr(0x4E00 + i) for i in range(32)]
    matcher = StopStrings(StopSet(stops))
    started = time.monotonic()
    text = "".join(matcher.push("a" * 10) for _ in range(20_000))
    assert text + matcher.flush() == "a" * 200_000
    assert time.monotonic() - started < 5
