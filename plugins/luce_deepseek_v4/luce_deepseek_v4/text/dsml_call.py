"""A call as DeepSeek V4 writes it: tags with the values as plain text between them.

<｜DSML｜invoke name="function">
<｜DSML｜parameter name="argument" string="true">value</｜DSML｜parameter>
</｜DSML｜invoke>
"""

from __future__ import annotations

import re
from enum import StrEnum

import orjson

from luce_core.text.call_reader import MAX_NAME, MAX_SPACE, Progress
from luce_core.text.output_parser import Piece, PieceKind, partial_suffix
from luce_deepseek_v4.text.markup import (
    END_CALLS,
    END_INVOKE,
    END_PARAMETER,
    INVOKE,
    PARAMETER,
)

_FOLLOWS = (PARAMETER, END_INVOKE, END_CALLS)
_NAME = rf'\s+name="([^"<>]{{1,{MAX_NAME}}})"'
_INVOKE_TAG = re.compile(rf"{INVOKE}{_NAME}\s*>")
_PARAMETER_TAG = re.compile(rf'{PARAMETER}{_NAME}(?:\s+string="(true|false)")?\s*>')
_MAX_TAG = MAX_NAME + 64


class _Place(StrEnum):
    HEAD = "head"
    BETWEEN = "between"
    VALUE = "value"


class DsmlCall:
    """A CallReader from `<｜DSML｜invoke` on; it begins with the first argument or the closing tag.

    A value marked `string="true"` streams as a JSON string. Any other comes out once it is whole,
    as it is written if that is JSON, else as a string. A call that goes on with the end of the
    block after an argument has ended.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.progress = Progress.READING
        self.rest = ""
        self._place = _Place.HEAD
        self._name = ""
        self._buffer = ""
        self._is_string = False
        self._value: list[str] = []  # of an argument that is no string
        self._value_size = 0

    @property
    def held(self) -> int:
        return len(self._buffer) + self._value_size

    def push(self, text: str) -> list[Piece]:
        self._buffer += text
        steps = {
            _Place.HEAD: self._read_head,
            _Place.BETWEEN: self._read_between,
            _Place.VALUE: self._read_value,
        }
        pieces: list[Piece] = []
        while self.progress is Progress.READING and steps[self._place](pieces):
            pass
        return pieces

    def flush(self) -> list[Piece]:
        text, self._buffer = self._buffer, ""
        if self._place is not _Place.VALUE:
            return [Piece(PieceKind.CONTENT, text)] if text else []
        cut = _quoted(text)[1:-1] if self._is_string else "".join((*self._value, text))
        return [Piece(PieceKind.ARGUMENTS, cut)] if cut else []

    def _read_head(self, pieces: list[Piece]) -> bool:
        tag = self._tag(INVOKE, _INVOKE_TAG)
        if tag is not None:
            self._name = tag[1]
            self._place = _Place.BETWEEN
        return tag is not None

    def _read_between(self, pieces: list[Piece]) -> bool:
        body = self._buffer.lstrip()
        if self.has_begun:
            self._buffer = body
        elif len(self._buffer) - len(body) > MAX_SPACE:
            self._leave(Progress.BROKEN)
            return False
        if body.startswith(PARAMETER):
            self._buffer = body
            tag = self._tag(PARAMETER, _PARAMETER_TAG)
            if tag is None:
                return False
            self._is_string = tag[2] == "true"
            start = "{" if self._begin(pieces) else ", "
            quote = '"' if self._is_string else ""
            pieces.append(Piece(PieceKind.ARGUMENTS, f"{start}{_quoted(tag[1])}: {quote}"))
            self._place = _Place.VALUE
            return True
        ends = body.startswith(END_INVOKE)
        if ends or (self.has_begun and body.startswith(END_CALLS)):
            pieces.append(Piece(PieceKind.ARGUMENTS, "{}" if self._begin(pieces) else "}"))
            self._buffer = body[len(END_INVOKE) :] if ends else body
            self._leave(Progress.ENDED)
        elif not any(mark.startswith(body) for mark in _FOLLOWS):
            self._leave(Progress.BROKEN)
        return False

    def _read_value(self, pieces: list[Piece]) -> bool:
        before, closing, after = self._buffer.partition(END_PARAMETER)
        if closing:
            self._buffer = after
            self._place = _Place.BETWEEN
        else:
            end = len(before) - partial_suffix(before, END_PARAMETER)
            before, self._buffer = before[:end], before[end:]
        if self._is_string:
            text = _quoted(before)[1:-1] + ('"' if closing else "")
        else:
            self._value.append(before)
            self._value_size += len(before)
            text = self._whole_value() if closing else ""
        if text:
            pieces.append(Piece(PieceKind.ARGUMENTS, text))
        return bool(closing)

    def _whole_value(self) -> str:
        text = "".join(self._value)
        self._value, self._value_size = [], 0
        try:
            orjson.loads(text)
        except orjson.JSONDecodeError:
            return _quoted(text)
        return text.strip()

    def _tag(self, opening: str, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The tag at the start of the buffer, which is then taken out; None if it is not all there
        yet or, with `progress` BROKEN, cannot be."""
        if not self._buffer.startswith(opening):
            if not opening.startswith(self._buffer):
                self._leave(Progress.BROKEN)
            return None
        tag = pattern.match(self._buffer)
        if tag is None:
            if ">" in self._buffer or len(self._buffer) > _MAX_TAG:
                self._leave(Progress.BROKEN)
            return None
        self._buffer = self._buffer[tag.end() :]
        return tag

    def _begin(self, pieces: list[Piece]) -> bool:
        """Put out the name, once; whether this was the time."""
        if self.has_begun:
            return False
        self.has_begun = True
        pieces.append(Piece(PieceKind.CALL, self._name))
        return True

    def _leave(self, progress: Progress) -> None:
        self.progress = progress
        self.rest, self._buffer = self._buffer, ""


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()
