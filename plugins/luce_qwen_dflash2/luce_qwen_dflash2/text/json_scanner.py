"""Following one JSON object (RFC 8259) while it streams."""

from __future__ import annotations

import json
import re
from enum import StrEnum

MAX_DEPTH = 128
_SPACE = " \t\n\r"
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SCALAR_CHARS = frozenset("0123456789+-.eEtrufalsn")
_HEX = frozenset("0123456789abcdefABCDEF")


class _Expect(StrEnum):
    OBJECT = "object"
    KEY_OR_END = "key_or_end"
    KEY = "key"
    COLON = "colon"
    VALUE = "value"
    VALUE_OR_END = "value_or_end"
    NEXT = "next"
    STRING = "string"
    ESCAPE = "escape"
    HEX = "hex"
    SCALAR = "scalar"
    NOTHING = "nothing"


class JsonScanner:
    """Takes one character after the other; `depth` is how many objects and lists are open.

    `key` is the last key of the outermost object as it is written, without its quotes.
    """

    def __init__(self) -> None:
        self.key = ""
        self._open: list[str] = []
        self._expect = _Expect.OBJECT
        self._is_key = False
        self._text: list[str] = []
        self._hex_left = 0

    @property
    def depth(self) -> int:
        return len(self._open)

    @property
    def is_complete(self) -> bool:
        return self._expect is _Expect.NOTHING

    def push(self, char: str) -> str | None:
        """The character as valid JSON has it, or None if no JSON object goes on like this.

        Only control characters inside strings, which models write as they are, come back escaped.
        """
        if self._expect is _Expect.SCALAR:
            if char in _SCALAR_CHARS:
                self._text.append(char)
                return char
            if not _SCALAR.fullmatch("".join(self._text)):
                return None
            self._expect = _Expect.NEXT
        if self._expect in (_Expect.STRING, _Expect.ESCAPE, _Expect.HEX):
            return self._in_string(char)
        if char in _SPACE and not self.is_complete:
            return char
        return char if self._structure(char) else None

    def _in_string(self, char: str) -> str | None:
        shown = json.dumps(char)[1:-1] if char < " " else char
        if self._expect is _Expect.ESCAPE:
            if char not in '"\\/bfnrtu':
                return None
            self._hex_left = 4
            self._expect = _Expect.HEX if char == "u" else _Expect.STRING
        elif self._expect is _Expect.HEX:
            if char not in _HEX:
                return None
            self._hex_left -= 1
            self._expect = _Expect.HEX if self._hex_left else _Expect.STRING
        elif char == '"':
            self._expect = _Expect.COLON if self._is_key else _Expect.NEXT
            if self._is_key and self.depth == 1:
                self.key = "".join(self._text)
            return char
        elif char == "\\":
            self._expect = _Expect.ESCAPE
        if self._is_key:
            self._text.append(shown)
        return shown

    def _structure(self, char: str) -> bool:
        expect = self._expect
        if expect is _Expect.COLON:
            self._expect = _Expect.VALUE
            return char == ":"
        if expect in (_Expect.KEY, _Expect.KEY_OR_END) and char == '"':
            self._begin_string(is_key=True)
            return True
        if expect in (_Expect.VALUE, _Expect.VALUE_OR_END) or (
            expect is _Expect.OBJECT and char == "{"
        ):
            if expect is _Expect.VALUE_OR_END and char == "]":
                return self._close(char)
            return self._begin_value(char)
        if expect is _Expect.KEY_OR_END:
            return char == "}" and self._close(char)
        if expect is _Expect.NEXT:
            if char == ",":
                self._expect = _Expect.KEY if self._open[-1] == "{" else _Expect.VALUE
                return True
            return self._close(char)
        return False

    def _begin_value(self, char: str) -> bool:
        if char in "{[":
            self._open.append(char)
            self._expect = _Expect.KEY_OR_END if char == "{" else _Expect.VALUE_OR_END
            return self.depth <= MAX_DEPTH
        if char == '"':
            self._begin_string(is_key=False)
            return True
        self._expect = _Expect.SCALAR
        self._text = [char]
        return char in _SCALAR_CHARS

    def _begin_string(self, *, is_key: bool) -> None:
        self._expect = _Expect.STRING
        self._is_key = is_key
        self._text = []

    def _close(self, char: str) -> bool:
        if char != {"{": "}", "[": "]"}[self._open[-1]]:
            return False
        self._open.pop()
        self._expect = _Expect.NEXT if self._open else _Expect.NOTHING
        return True
