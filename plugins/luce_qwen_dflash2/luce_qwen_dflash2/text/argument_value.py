"""The value of one argument on its way from plain text to JSON, piece by piece."""

from __future__ import annotations

from typing import Protocol

from luce_qwen_dflash2.text.argument_types import as_json, quoted


class ArgumentValue(Protocol):
    """`push` in order, then `end` once, or `cut` if the text ends inside the value.

    Each returns the JSON text that is decided by then.
    """

    @property
    def held(self) -> int: ...

    def push(self, text: str) -> str: ...

    def end(self) -> str: ...

    def cut(self) -> str: ...


def argument_value(types: frozenset[str]) -> ArgumentValue:
    """Where a string is allowed the value is a string, unless it is `null` and that is allowed."""
    if "string" in types:
        return _StringValue(is_nullable="null" in types)
    return _TypedValue(types)


class _StringValue:
    def __init__(self, *, is_nullable: bool) -> None:
        self._is_nullable = is_nullable
        self._is_open = False
        self._start = ""

    @property
    def held(self) -> int:
        return len(self._start)

    def push(self, text: str) -> str:
        if self._is_open:
            return quoted(text)[1:-1]
        self._start += text
        if self._is_nullable and "null".startswith(self._start):
            return ""
        return self.cut()

    def end(self) -> str:
        if not self._is_open and self._is_nullable and self._start == "null":
            return "null"
        return self.cut() + '"'

    def cut(self) -> str:
        if self._is_open:
            return ""
        text, self._start, self._is_open = self._start, "", True
        return quoted(text)[:-1]


class _TypedValue:
    """Waits for the whole text, because only that says what it is."""

    def __init__(self, types: frozenset[str]) -> None:
        self._types = types
        self._texts: list[str] = []
        self.held = 0

    def push(self, text: str) -> str:
        self._texts.append(text)
        self.held += len(text)
        return ""

    def end(self) -> str:
        return as_json("".join(self._texts), self._types)

    def cut(self) -> str:
        return "".join(self._texts)
