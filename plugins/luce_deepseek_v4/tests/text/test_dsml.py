"""Calls in DeepSeek's markup are found, what is no call is kept, and cuts change nothing."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from luce_deepseek_v4.text import dsml_tool_parser

from luce_core.text.output_parser import Piece, PieceKind

from .deepseek_markup import SEARCH, WEATHER, calls, invoke, tool

TOOLS = [tool(WEATHER), tool(SEARCH)]
ROME = invoke("weather", ("city", "Rome", True), ("days", "3", False))
FIND = invoke("search", ("query", "a\nb", True), ("filters", '{"x": [1, 2]}', False))
LONG = 100_000


def run(pieces: list[str]) -> list[Piece]:
    """Everything that comes out, neighbours of one kind joined."""
    parser = dsml_tool_parser(TOOLS)
    out: list[Piece] = []
    pushed = 0
    for piece in pieces:
        pushed += len(piece)
        out += parser.push(piece)
        assert 0 <= parser.held <= pushed
    out += parser.flush()
    assert all(piece.text for piece in out)
    joined: list[Piece] = []
    for kind, same in itertools.groupby(out, key=lambda piece: piece.kind):
        texts = [piece.text for piece in same]
        if kind is PieceKind.CALL:
            joined += [Piece(kind, text) for text in texts]
        else:
            joined.append(Piece(kind, "".join(texts)))
    return joined


def answer(text: str) -> tuple[str, list[tuple[str, str]]]:
    """(content, calls with arguments), the same for the text whole and in characters."""
    found = run([text])
    assert run(list(text)) == found
    content = "".join(text for kind, text in found if kind is PieceKind.CONTENT)
    made: list[tuple[str, str]] = []
    for kind, text in found:
        if kind is PieceKind.CALL:
            made.append((text, ""))
        elif kind is PieceKind.ARGUMENTS:
            made[-1] = (made[-1][0], made[-1][1] + text)
    return content, made


ROME_CALL = ("weather", {"city": "Rome", "days": 3})
FIND_CALL = ("search", {"query": "a\nb", "filters": {"x": [1, 2]}})


@pytest.mark.parametrize(
    ("text", "content", "expected"),
    [
        ("Look." + calls(ROME), "Look.", [ROME_CALL]),
        (calls(ROME, FIND), "", [ROME_CALL, FIND_CALL]),
        (calls(ROME) + calls(FIND), "", [ROME_CALL, FIND_CALL]),
        (calls(invoke("unknown")), "", [("unknown", {})]),
        ("A\n\n" + ROME, "A", [ROME_CALL]),
        (calls(ROME) + "\n\nB", "B", [ROME_CALL]),
        (calls(ROME).replace("</｜DSML｜tool_calls>", ""), "", [ROME_CALL]),
        (calls(ROME).replace("</｜DSML｜invoke>\n", ""), "", [ROME_CALL]),
        (calls(ROME).replace(' string="true"', ""), "", [ROME_CALL]),
        (calls(invoke("weather", ("days", "three", False))), "", [("weather", {"days": "three"})]),
        (calls(invoke("weather", ("city", "", True))), "", [("weather", {"city": ""})]),
        (
            calls(invoke("weather", ("city", ' "q"\\ ', True))),
            "",
            [("weather", {"city": ' "q"\\ '})],
        ),
    ],
)
def test_calls_and_content_are_told_apart(
    text: str, content: str, expected: list[tuple[str, object]]
) -> None:
    found, made = answer(text)
    assert found == content
    assert [(name, json.loads(arguments)) for name, arguments in made] == expected


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "a < b",
        "<｜DSML｜",
        "<｜DSML｜tool_calls>",
        "<｜DSML｜tool_calls>\nnothing",
        "<｜DSML｜invoke>",
        "<｜DSML｜invoke name=x>",
        '<｜DSML｜invoke name="weather">text',
        '<｜DSML｜invoke name="' + "n" * 200 + '">',
        "<｜DSML｜tool_calls>" + " " * 50 + ROME[:9],
    ],
)
def test_what_is_no_call_stays_content(text: str) -> None:
    assert answer(text) == (text, [])


def test_a_string_streams_and_a_cut_call_stays_a_beginning() -> None:
    parser = dsml_tool_parser(TOOLS)
    head, _, _ = ROME.partition("Rome")
    pieces = parser.push(head + "Ro")
    assert pieces == [
        Piece(PieceKind.CALL, "weather"),
        Piece(PieceKind.ARGUMENTS, '{"city": "'),
        Piece(PieceKind.ARGUMENTS, "Ro"),
    ]
    assert parser.push("me") == [Piece(PieceKind.ARGUMENTS, "me")]
    assert parser.flush() == []
    assert run([ROME[: ROME.index("3") + 1]])[-1].text == '{"city": "Rome", "days": 3'


def test_text_that_breaks_a_call_is_content() -> None:
    text = ROME.replace("</｜DSML｜invoke>", "oh no")
    assert answer(text) == ("oh no\n", [("weather", '{"city": "Rome", "days": 3')])


def test_long_values_cost_linear_time() -> None:
    text = calls(invoke("weather", ("city", "<｜DSML｜" * (LONG // 8), True)))
    _, made = answer(text)
    assert json.loads(made[0][1])["city"] == "<｜DSML｜" * (LONG // 8)


MARKS = st.sampled_from(
    [
        ROME,
        FIND,
        "<｜DSML｜tool_calls>",
        "</｜DSML｜tool_calls>",
        "<｜DSML｜invoke",
        ' name="f">',
        "</｜DSML｜parameter>",
        "\n",
        "<",
        "x",
        "é",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(MARKS, max_size=9), st.data())
def test_cuts_change_nothing_and_no_text_without_calls_is_lost(
    parts: list[str], data: st.DataObject
) -> None:
    text = "".join(parts)
    whole = run([text])
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    cuts = [text[a:b] for a, b in itertools.pairwise([0, *places, len(text)])]
    assert run(cuts) == whole
    if all(kind is PieceKind.CONTENT for kind, _ in whole):
        assert "".join(text for _, text in whole) == text
