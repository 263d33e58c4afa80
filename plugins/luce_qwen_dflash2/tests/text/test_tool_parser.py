"""Calls are found in both forms, nothing that is no call is lost, and cuts change nothing."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from luce_qwen_dflash2.text.tool_parser import qwen_tool_parser

from luce_core.text.output_parser import Piece, PieceKind

from .qwen_markup import SEARCH, WEATHER, function, tool

WRITE = function("write", path={"type": "string"}, text={"type": "string"})
TOOLS = [tool(WEATHER), tool(SEARCH), tool(WRITE)]
LONG = 100_000


def xml(name: str, **arguments: str) -> str:
    """A call as Qwen's templates write it."""
    body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def as_json(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def run(pieces: list[str]) -> list[Piece]:
    """Everything that comes out, neighbours of one kind joined."""
    parser = qwen_tool_parser(TOOLS)
    out: list[Piece] = []
    pushed = 0
    for piece in [*pieces, None]:
        if piece is not None:
            pushed += len(piece)
            out += parser.push(piece)
            assert 0 <= parser.held <= pushed
        else:
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
    calls: list[tuple[str, str]] = []
    for kind, text in found:
        if kind is PieceKind.CALL:
            calls.append((text, ""))
        elif kind is PieceKind.ARGUMENTS:
            calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return content, calls


def parsed(text: str) -> tuple[str, list[tuple[str, object]]]:
    content, calls = answer(text)
    return content, [(name, json.loads(arguments)) for name, arguments in calls]


ROME = {"city": "Rome", "days": 3}


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (xml("weather", city="Rome", days="3"), "", [("weather", ROME)]),
        (as_json("weather", '{"city": "Rome", "days": 3}'), "", [("weather", ROME)]),
        ("Let me look.\n\n" + xml("weather"), "Let me look.", [("weather", {})]),
        (as_json("weather", "{}") + "\n", "", [("weather", {})]),
        ("\n\n" + xml("weather", city="a") + "\n", "", [("weather", {"city": "a"})]),
        (
            "One.\n" + xml("weather", city="a") + "\nTwo.\n" + as_json("search", "{}") + "\nThree.",
            "One.\n\nTwo.\n\nThree.",
            [("weather", {"city": "a"}), ("search", {})],
        ),
        (
            xml("weather", city="a") + "\n" + xml("weather", city="b"),
            "",
            [("weather", {"city": "a"}), ("weather", {"city": "b"})],
        ),
        (
            '<tool_call>{"name":"weather","arguments":{"city":"a"}}</tool_call>',
            "",
            [("weather", {"city": "a"})],
        ),
        # other orders and forms of the same
        (
            '<tool_call>{"arguments": {"days": 3}, "name": "weather"}</tool_call>',
            "",
            [("weather", {"days": 3})],
        ),
        (as_json("weather", '"{\\"days\\": 3}"'), "", [("weather", {"days": 3})]),
        (as_json("weather", "null"), "", [("weather", {})]),
        ('<tool_call>{"name": "weather"}</tool_call>', "", [("weather", {})]),
        (
            '<tool_call>{"id": [1], "name": "weather", "arguments": {"a": "\\u00e9"}, "x": {}}'
            "</tool_call>",
            "",
            [("weather", {"a": "é"})],
        ),
        # models write line breaks into JSON strings as they are
        (as_json("write", '{"text": "a\nb\tc"}'), "", [("write", {"text": "a\nb\tc"})]),
        # a missing last brace, a missing </function>, a missing <tool_call>
        (
            '<tool_call>\n{"name": "weather", "arguments": {"days": 3}\n</tool_call>!',
            "!",
            [("weather", {"days": 3})],
        ),
        (
            "<tool_call><function=weather><parameter=city>a</parameter></tool_call>",
            "",
            [("weather", {"city": "a"})],
        ),
        (
            "So:\n<function=weather>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            "So:",
            [("weather", {"days": 3})],
        ),
        # a tool that the request has not named is a call all the same
        (xml("other", a="1"), "", [("other", {"a": "1"})]),
    ],
)
def test_calls_and_the_text_around_them(
    text: str, content: str, calls: list[tuple[str, object]]
) -> None:
    assert parsed(text) == (content, calls)


@pytest.mark.parametrize(
    "text",
    [
        "plain text\n\n",
        "<tool_call>",
        "<tool_call>\n",
        "a <tool_call> b </tool_call>",
        "<tool_call>\n{'name': 'weather', 'arguments': {}}\n</tool_call>",
        '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": "no"}</tool_call>',
        '<tool_call>{"name": "weather", "argu',
        "<tool_call>[]</tool_call>",
        "<tool_call>\n<function=weather>{}</function>\n</tool_call>",
        "<tool_call>\n<function=two words>\n</function></tool_call>",
        "<tool_call>\n<function=>\n</function></tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=",
        f"<tool_call><function={'n' * 129}></function></tool_call>",
        f"<tool_call>{' ' * 33}<function=unknown></function></tool_call>",
        "<function=unknown>\n</function>",
        "if a <function= b",
        "\n\n<tool_call>x",
        "\n" * 30,
    ],
)
def test_what_is_no_call_stays_content_in_full(text: str) -> None:
    assert answer(text) == (text, [])


def test_a_call_behind_one_that_is_none_is_found() -> None:
    bad = "<tool_call>\n{oops}\n"
    assert parsed(bad + xml("weather", days="1")) == (bad.rstrip("\n"), [("weather", {"days": 1})])


def test_a_value_may_speak_of_the_markup() -> None:
    text = "use </parameter> to end\n\n</parameter>\nand <parameter=x>\n"
    content, calls = parsed(xml("write", path="a", text=text) + " ")
    assert content == " "
    assert calls == [("write", {"path": "a", "text": text})]


@pytest.mark.parametrize(
    "value", ["", "\n", "\n\nx\n\n", ' "quoted" \\ \t', "漢\x00\u2028", "null"]
)
def test_a_string_value_arrives_as_it_is(value: str) -> None:
    assert parsed(xml("write", text=value)) == ("", [("write", {"text": value})])


@pytest.mark.parametrize(
    ("text", "name", "arguments", "content"),
    [
        ("<tool_call><function=write><parameter=text>\nhalf a", "write", '{"text": "half a', ""),
        ("<tool_call><function=write><parameter=text>\nx</para", "write", '{"text": "x</para', ""),
        ("<tool_call><function=weather><parameter=days>\n1", "weather", '{"days": 1', ""),
        ('<tool_call>{"name": "search", "arguments": {"q', "search", '{"q', ""),
        # a form that breaks after the call has begun
        (
            '<tool_call>{"name": "search", "arguments": {"q": 1 oops}}</tool_call>',
            "search",
            '{"q": 1 ',
            "oops}}</tool_call>",
        ),
        (
            "<tool_call><function=write><parameter=text>a</parameter><parameter=a b></function>",
            "write",
            '{"text": "a"',
            "<parameter=a b></function>",
        ),
    ],
)
def test_a_call_that_breaks_off_is_not_repaired(
    text: str, name: str, arguments: str, content: str
) -> None:
    assert answer(text) == (content, [(name, arguments)])


def test_arguments_stream_while_the_model_writes_them() -> None:
    for text in (xml("write", text="x" * 50), as_json("write", f'{{"text": "{"x" * 50}"}}')):
        parser = qwen_tool_parser(TOOLS)
        sizes = [sum(len(piece.text) for piece in parser.push(char)) for char in text]
        start = text.index("xxx")
        assert sizes[start + 1 : start + 50] == [1] * 49


def test_a_long_text_that_turns_out_to_be_no_call_is_searched_again_in_bounded_time() -> None:
    text = '<tool_call>{"' + "<tool_call>" * LONG + '" oops'
    parser = qwen_tool_parser(TOOLS)
    out: list[Piece] = []
    for start in range(0, len(text), 11):
        out += parser.push(text[start : start + 11])
    assert "".join(piece.text for piece in out + parser.flush()) == text


@pytest.mark.parametrize(
    ("start", "again"),
    [
        ("", "\n"),
        ("", "<tool_call>"),
        ("", "<function=weather>"),
        ("<tool_call>", "\n"),
        ("<tool_call>{", " "),
        ('<tool_call>{"', "x"),
        ('<tool_call>{"name": "weather", "arguments": {"a": ', "1"),
        ("<tool_call><function=", "x"),
        ("<tool_call><function=weather>", "\n"),
        ("<tool_call><function=weather><parameter=city>", "\n"),
        ("<tool_call><function=weather><parameter=days>", "</parameter>"),
        ("<tool_call><function=weather><parameter=city></parameter>", " "),
        (xml("weather"), "\n"),
    ],
)
def test_a_model_that_repeats_itself_costs_linear_time(start: str, again: str) -> None:
    parser = qwen_tool_parser(TOOLS)
    parser.push(start)
    for _ in range(LONG):
        parser.push(again)
        assert parser.held >= 0
    parser.flush()


WORDS = [
    "<tool_call>",
    "</tool_call>",
    "<function=weather>",
    "<function=other>",
    "</function>",
    "<parameter=city>",
    "<parameter=days>",
    "</parameter>",
    '{"name": "search", "arguments": ',
    '{"query": "a", "filters": {"b": [1, null]}}',
    '{"a"',
    "}",
    '"',
    ": ",
    "\\",
    "\n",
    " ",
    "7",
    "é",
    "<",
    xml("weather", city="Rome", days="3"),
    as_json("search", '{"query": "x"}'),
]


@settings(max_examples=400)
@given(st.lists(st.sampled_from(WORDS), max_size=14), st.data())
def test_any_cut_gives_the_same_events(words: list[str], data: st.DataObject) -> None:
    text = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    whole = run([text])
    assert run(pieces) == whole
    assert run(list(text)) == whole
    if not any(kind is PieceKind.CALL for kind, _ in whole):
        assert "".join(text for _, text in whole) == text
    # What a call takes is markup and arguments: no other character goes missing.
    content = "".join(text for kind, text in whole if kind is PieceKind.CONTENT)
    letters = iter(re.sub(r"\s", "", text))
    assert all(char in letters for char in re.sub(r"\s", "", content))
