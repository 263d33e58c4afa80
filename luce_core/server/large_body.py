"""JSON from long bodies, read in small bites, so that steps go on meanwhile.

A JSON library holds the interpreter's lock from the first byte to the last: 40 ms for a text of
20 MB, four seconds for as many empty lists. So a long body is measured before it is parsed, and
refused if it holds too many values; long strings are taken out, decoded piece by piece, and put
into the parsed rest. Between two bites the thread rests, so that a step that has just come back
from the device has the lock at once.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any

import orjson

from luce_core.errors import RequestError

# What a container costs to build, in values.
CONTAINER_VALUES = 8
_BITE_BYTES = 64 << 10
_LONG_STRING_BYTES = _BITE_BYTES
# The bytes of a string in whole units: plain runs, and escapes with both halves of a pair.
_UNITS = re.compile(
    rb"(?:[^\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}"
    rb"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[^u])*+",
    re.DOTALL,
)


def parse_json(
    data: bytes | bytearray, *, most_values: int, rest: Callable[[], None] = lambda: None
) -> Any:
    """As orjson.loads, for a background thread. `rest` is called between two bites.

    RequestError (400) for what is no JSON, or (413) if it holds more than `most_values` values, of
    which a list or an object counts CONTAINER_VALUES. Of equal keys the last counts; NaN, Infinity
    and lone surrogates are refused; integers beyond 64 bits become floats.
    """
    if CONTAINER_VALUES * len(data) <= most_values:
        return _loads(data)  # so few bytes cannot hold too many
    spans = _measure(data, most_values, rest)
    if not spans:
        return _loads(data)
    name = secrets.token_hex(16)
    texts: dict[str, str] = {}
    short = bytearray()
    done = 0
    for start, stop in spans:
        key = f"{name}-{len(texts)}"
        texts[key] = _decode(data, start, stop, rest)
        short += data[done:start]
        short += key.encode()
        done = stop
    short += data[done:]
    return _put_back(_loads(short), texts)


def _loads(data: bytes | bytearray) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _invalid(str(error)) from error


def _invalid(problem: str) -> RequestError:
    return RequestError(f"the request body is not valid JSON: {problem}", code="invalid_json")


def _measure(
    data: bytes | bytearray, most_values: int, rest: Callable[[], None]
) -> list[tuple[int, int]]:
    """Start and end of every long string, without its quotes; refuses what has too many values."""
    spans: list[tuple[int, int]] = []
    inside = False
    opened = values = 0
    start = 0
    while start < len(data):
        stop = min(start + _BITE_BYTES, len(data))
        bite = bytes(data[start:stop])
        # An escape is not cut: an odd number of backslashes goes with the byte that follows.
        tail = len(bite) - len(bite.rstrip(b"\\"))
        if tail % 2 and stop < len(data):
            stop += 1
            bite += data[stop - 1 : stop]
        if b"\\" in bite:
            bite = bite.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        parts = bite.split(b'"')
        if inside and len(parts) > 1:
            end = start + len(parts[0])
            if end - opened > _LONG_STRING_BYTES:
                spans.append((opened, end))
        outside = b"".join(parts[inside::2])
        values += outside.count(b",") + outside.count(b":")
        values += CONTAINER_VALUES * (outside.count(b"[") + outside.count(b"{"))
        if values > most_values:
            raise RequestError(
                f"the request body holds more than {most_values} values, of which a list or an "
                f"object counts {CONTAINER_VALUES}",
                code="body_too_large",
                status=413,
            )
        if (len(parts) - 1) % 2:
            inside = not inside
        if inside and len(parts) > 1:
            opened = stop - len(parts[-1])
        start = stop
        if start < len(data):
            rest()
    return spans


def _decode(data: bytes | bytearray, start: int, stop: int, rest: Callable[[], None]) -> str:
    """The text of a JSON string whose inside is data[start:stop]."""
    pieces: list[str] = []
    at = start
    while at < stop:
        end = min(at + _BITE_BYTES, stop)
        if end < stop:
            while end > at and data[end] & 0xC0 == 0x80:  # not inside a character
                end -= 1
            units = _UNITS.match(data, at, end)
            assert units is not None
            end = units.end()
            if end == at:
                raise _invalid(f"invalid escape or character in the string at byte {start}")
        try:
            pieces.append(orjson.loads(b'"%b"' % bytes(data[at:end])))
        except orjson.JSONDecodeError as error:
            raise _invalid(f"{error}, in a piece of the string at byte {start}") from error
        at = end
        rest()
    return "".join(pieces)


def _put_back(value: Any, texts: dict[str, str]) -> Any:
    """Long strings in the place of their names. In place, without recursion."""
    if isinstance(value, str):
        return texts.get(value, value)
    todo: list[Any] = [value]
    while todo:
        container = todo.pop()
        if isinstance(container, dict):
            if not texts.keys().isdisjoint(container):
                raise RequestError("a key of the request body is too long", code="invalid_json")
            items: Any = container.items()
        elif isinstance(container, list):
            items = enumerate(container)
        else:
            continue
        for key, item in list(items):
            if isinstance(item, str):
                if item in texts:
                    container[key] = texts[item]
            elif isinstance(item, dict | list):
                todo.append(item)
    return value
