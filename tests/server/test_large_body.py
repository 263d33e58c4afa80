"""Long bodies are parsed as short ones are, in bites, and only if they hold what may be held."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from luce_core.errors import RequestError
from luce_core.server import large_body
from luce_core.server.large_body import parse_json

MOST = 1 << 18
MB = 1 << 20

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.text(min_size=40),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.fixture
def small_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_body, "_BITE_BYTES", 16)
    monkeypatch.setattr(large_body, "_LONG_STRING_BYTES", 32)


def parsed(data: bytes) -> Any:
    """The value, or the error's code; with a limit that everything is measured for and keeps."""
    try:
        return parse_json(data + b" ", most_values=8 * len(data))
    except RequestError as error:
        return error.code


def oracle(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return "invalid_json"


@pytest.mark.usefixtures("small_bites")
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None
)
@given(JSON, st.booleans(), st.booleans())
def test_bites_change_no_value(value: Any, ascii_only: bool, spaced: bool) -> None:
    separators = None if spaced else (",", ":")
    text = json.dumps(value, ensure_ascii=ascii_only, separators=separators)
    data = text.encode("utf-8", "surrogatepass")
    assert parsed(data) == oracle(data)


ESCAPES = (b"\\", b"\\\\", b'\\"', b"\\u00e9", b"\\ud83d\\ude00", b"\\ud83d", b"\\u")
PLAIN = (b"a" * 17, b"7", b"\n", b"\xc3\xa9", b"\xf0\x9f\x98\x80", b"\x9f")
MARKS = (b'"', b"[", b"]", b"{", b"}", b",", b":")


@pytest.mark.usefixtures("small_bites")
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=500, deadline=None
)
@given(st.lists(st.sampled_from(ESCAPES + PLAIN + MARKS), min_size=1, max_size=40), st.booleans())
def test_bites_refuse_what_a_whole_parse_refuses(pieces: list[bytes], quoted: bool) -> None:
    data = b"".join(pieces)
    if quoted:
        data = b'["' + data + b'"]'
    assert parsed(data) == oracle(data)


@pytest.mark.parametrize("unit", ["word ", "wörd ж ", "\\n\\u00e9\\ud83d\\ude00", '\\"\\\\', "😀"])
def test_the_json_library_gets_a_bite_at_a_time(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    loads = orjson.loads

    def watched(data: bytes) -> Any:
        sizes.append(len(data))
        return loads(data)

    data = b'{"a":[1,"%b"],"b":"c"}' % (unit.encode() * (2 * MB // len(unit)))
    expected = loads(data)
    monkeypatch.setattr(large_body.orjson, "loads", watched)
    assert parse_json(data, most_values=MOST) == expected
    assert max(sizes) <= (64 << 10) + 2
    assert len(sizes) > 16


@pytest.mark.parametrize(
    ("item", "values"), [(b"1", 1), (b'"a"', 1), (b"[]", 9), (b'{"a":1}', 10), (b"[[]]", 17)]
)
def test_values_are_counted_outside_of_strings_only(item: bytes, values: int) -> None:
    count = 10_000
    data = b"[" + b",".join([item] * count) + b"]"
    most = values * count - 1 + 8
    assert len(parse_json(data, most_values=most)) == count
    with pytest.raises(RequestError, match=f"more than {most - 1} values") as error:
        parse_json(data, most_values=most - 1)
    assert (error.value.status, error.value.code) == (413, "body_too_large")
    text = orjson.dumps({"text": data.decode() * 20})
    assert len(parse_json(text, most_values=1024)["text"]) == 20 * len(data)


def test_a_long_key_is_refused() -> None:
    with pytest.raises(RequestError, match="key"):
        parse_json(b'{"%b":1}' % (b"k" * MB), most_values=MOST)


@pytest.mark.parametrize("bad", [b"\\q", b"\\ud800x", b"\xff", b"\x01"])
def test_errors_in_a_long_string_say_where_it_begins(bad: bytes) -> None:
    data = b'{"text":"' + b"a" * (300 << 10) + bad + b"a" * (300 << 10) + b'"}'
    with pytest.raises(RequestError, match=r"not valid JSON: .*string at byte 9"):
        parse_json(data, most_values=MOST)
