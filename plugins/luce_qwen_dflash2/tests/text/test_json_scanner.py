"""The scanner takes exactly the JSON objects."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from luce_qwen_dflash2.text.json_scanner import MAX_DEPTH, JsonScanner

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def accepts(text: str) -> bool:
    """Whether the text is one complete object and nothing else."""
    scanner = JsonScanner()
    return all(scanner.push(char) is not None for char in text) and scanner.is_complete


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=4), st.sampled_from([None, 1]))
def test_every_object_is_taken_as_it_is(value: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    scanner = JsonScanner()
    assert "".join(scanner.push(char) or "?" for char in text) == text
    assert scanner.is_complete
    assert scanner.depth == 0


@given(st.text(alphabet='{}[]",:\\ 0123.eE-+trufalsn/x', max_size=14))
def test_what_json_refuses_is_refused(inner: str) -> None:
    for text in ('{"a":' + inner + "}", "{" + inner):
        try:
            expected = isinstance(strict(text), dict) and text == text.rstrip()
        except ValueError:
            expected = False
        assert accepts(text) == expected


@pytest.mark.parametrize(
    "text", ['{"a": 01}', '{"a": }', "{,}", '{"a": 1,}', '{"a" 1}', "[]", '{"a": [1}', '{"\\x": 1}']
)
def test_near_misses(text: str) -> None:
    assert not accepts(text)


def test_line_breaks_in_strings_are_escaped() -> None:
    scanner = JsonScanner()
    text = "".join(scanner.push(char) or "?" for char in '{"a\n": "b\r\x01"}')
    assert json.loads(text) == {"a\n": "b\r\x01"}


def test_depth_is_bounded() -> None:
    def nested(depth: int) -> str:
        return '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"

    assert accepts(nested(MAX_DEPTH))
    assert not accepts(nested(MAX_DEPTH + 1))
