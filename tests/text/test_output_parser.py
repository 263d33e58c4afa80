"""Reasoning and content are told apart, and only markup is dropped."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce_core.text.output_parser import (
    OutputParser,
    Piece,
    PieceKind,
    PlainParser,
    ThinkParser,
)


def run(parser: OutputParser, pieces: list[str]) -> tuple[str, str]:
    """(reasoning, content)"""
    out: list[Piece] = []
    for piece in pieces:
        out += parser.push(piece)
    out += parser.flush()
    assert all(piece.text for piece in out)
    return (
        "".join(p.text for p in out if p.kind is PieceKind.REASONING),
        "".join(p.text for p in out if p.kind is PieceKind.CONTENT),
    )


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "content"),
    [
        ("<think>\nplan\n</think>\n\nanswer\n", False, "plan", "answer\n"),
        ("\n <think>plan</think>answer", False, "plan", "answer"),
        ("plan\n</think>\n\nanswer", True, "plan", "answer"),
        ("<think>\nplan</think>answer", True, "plan", "answer"),
        ("answer", False, "", "answer"),
        (" \n answer", False, "", " \n answer"),
        ("", False, "", ""),
        ("plan\n\nmore\n", True, "plan\n\nmore\n", ""),
        ("<think>cut off </thi", False, "cut off </thi", ""),
        ("<thi", False, "", "<thi"),
        ("use <think> and </think>", False, "", "use <think> and </think>"),
        ("<think></think>a <think>b</think>", False, "", "a <think>b</think>"),
        ("<think>a < b </b> c</think>d", False, "a < b </b> c", "d"),
    ],
)
def test_thinking_block_is_split_off(text: str, inside: bool, reasoning: str, content: str) -> None:
    for pieces in ([text], list(text)):
        assert run(ThinkParser(starts_inside=inside), pieces) == (reasoning, content)


def test_only_a_possible_tag_is_held_back() -> None:
    parser = ThinkParser(starts_inside=True)
    assert parser.push("plan <") == [Piece(PieceKind.REASONING, "plan ")]
    assert parser.held == 1
    assert parser.push("b") == [Piece(PieceKind.REASONING, "<b")]
    assert parser.in_reasoning
    assert parser.push("</think>x") == [Piece(PieceKind.CONTENT, "x")]
    assert not parser.in_reasoning


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<", "think", ">", "\n", " ", "a", "</", "b\n"]),
        max_size=12,
    ),
    st.booleans(),
    st.data(),
)
def test_any_cut_gives_the_same_split(words: list[str], inside: bool, data: st.DataObject) -> None:
    text = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    bounds = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    whole = run(ThinkParser(starts_inside=inside), [text])
    assert run(ThinkParser(starts_inside=inside), pieces) == whole
    if "<think>" not in text and "</think>" not in text:
        expected = (text.lstrip("\n"), "") if inside else ("", text)
        assert whole == expected


def test_plain_parser_passes_everything() -> None:
    assert run(PlainParser(), ["<think>", "", "a"]) == ("", "<think>a")
