"""A call as Qwen3-Coder and Qwen3.5 write it: tags with the values as plain text between them.

<function=name>
<parameter=argument>
value
</parameter>
</function>
"""

from __future__ import annotations

import re
from enum import StrEnum

from luce_core.text.call_reader import MAX_NAME, MAX_SPACE, Progress
from luce_core.text.output_parser import Piece, PieceKind, partial_suffix
from luce_qwen_dflash2.text.argument_types import ArgumentTypes, quoted
from luce_qwen_dflash2.text.argument_value import ArgumentValue, argument_value

FUNCTION = "<function="
PARAMETER = "<parameter="
END_PARAMETER = "</parameter>"
END_FUNCTION = "</function>"
END_CALL = "</tool_call>"
_FOLLOWS = (PARAMETER, END_FUNCTION, END_CALL)
_NAME = re.compile(r"[^\s<>]*")


def opening_tag(name: str) -> str | None:
    """The tag that a call of this name begins with; None if no tag can hold the name."""
    fits = name and len(name) <= MAX_NAME and _NAME.fullmatch(name)
    return f"{FUNCTION}{name}>" if fits else None


class _Place(StrEnum):
    NAME = "name"
    BETWEEN = "between"
    VALUE = "value"


class XmlCall:
    """A CallReader from `<function=` on; it begins with the first argument or the closing tag.

    One newline after the opening tag of a value and one before its closing tag are markup. The
    closing tag counts only where an argument can end, before the next one or the end of the call,
    so a value may speak of it. A call that goes on with `</tool_call>` after an argument has ended.
    """

    def __init__(self, types: ArgumentTypes) -> None:
        self.has_begun = False
        self.progress = Progress.READING
        self.rest = ""
        self._types = types
        self._place = _Place.NAME
        self._name = ""
        self._buffer = ""
        self._value: ArgumentValue | None = None
        self._is_first = True  # of the characters of a value
        self._searched = 0  # up to here no closing tag begins in the buffer

    @property
    def held(self) -> int:
        return len(self._buffer) + (0 if self._value is None else self._value.held)

    def push(self, text: str) -> list[Piece]:
        self._buffer += text
        steps = {
            _Place.NAME: self._read_name,
            _Place.BETWEEN: self._read_between,
            _Place.VALUE: self._read_value,
        }
        pieces: list[Piece] = []
        while self.progress is Progress.READING and steps[self._place](pieces):
            pass
        return pieces

    def flush(self) -> list[Piece]:
        text, self._buffer = self._buffer, ""
        if self._value is not None:
            cut = self._value.push(text) if text else ""
            cut += self._value.cut()
            return [Piece(PieceKind.ARGUMENTS, cut)] if cut else []
        return [Piece(PieceKind.CONTENT, text)] if text else []

    def _read_name(self, pieces: list[Piece]) -> bool:
        name = self._tag_name(FUNCTION)
        if name:
            self._name = name
            self._place = _Place.BETWEEN
        return bool(name)

    def _read_between(self, pieces: list[Piece]) -> bool:
        body = self._buffer.lstrip()
        if self.has_begun:
            self._buffer = body
        elif len(self._buffer) - len(body) > MAX_SPACE:
            self._leave(Progress.BROKEN)
            return False
        if body.startswith(PARAMETER):
            self._buffer = body
            argument = self._tag_name(PARAMETER)
            if not argument:
                return False
            start = "{" if self._begin(pieces) else ", "
            pieces.append(Piece(PieceKind.ARGUMENTS, f"{start}{quoted(argument)}: "))
            self._value = argument_value(self._types.of(self._name, argument))
            self._place = _Place.VALUE
            self._is_first = True
            self._searched = 0
            return True
        ends = body.startswith(END_FUNCTION)
        if ends or (self.has_begun and body.startswith(END_CALL)):
            pieces.append(Piece(PieceKind.ARGUMENTS, "{}" if self._begin(pieces) else "}"))
            self._buffer = body[len(END_FUNCTION) :] if ends else body
            self._leave(Progress.ENDED)
        elif not any(mark.startswith(body) for mark in _FOLLOWS):
            self._leave(Progress.BROKEN)
        return False

    def _read_value(self, pieces: list[Piece]) -> bool:
        assert self._value is not None
        if self._is_first and self._buffer:
            self._buffer = self._buffer.removeprefix("\n")
            self._is_first = False
        end, is_closed = self._find_end()
        stop = end - 1 if self._buffer[:end].endswith("\n") else end
        text = self._value.push(self._buffer[:stop]) if stop else ""
        if is_closed:
            text += self._value.end()
            self._buffer = self._buffer[end + len(END_PARAMETER) :]
            self._value = None
            self._place = _Place.BETWEEN
        else:
            self._buffer = self._buffer[stop:]
            self._searched = max(0, self._searched - stop)
        if text:
            pieces.append(Piece(PieceKind.ARGUMENTS, text))
        return is_closed

    def _find_end(self) -> tuple[int, bool]:
        """Where the value ends, or up to where it surely goes on."""
        while (at := self._buffer.find(END_PARAMETER, self._searched)) >= 0:
            after = at + len(END_PARAMETER)
            window = self._buffer[after : after + MAX_SPACE + len(PARAMETER) + 1]
            body = window.lstrip()
            if len(window) - len(body) <= MAX_SPACE:
                if body.startswith(_FOLLOWS):
                    return at, True
                if any(mark.startswith(body) for mark in _FOLLOWS):
                    return at, False
            self._searched = after
        end = len(self._buffer) - partial_suffix(self._buffer, END_PARAMETER)
        return max(end, self._searched), False

    def _tag_name(self, opening: str) -> str:
        """The name in the tag at the start of the buffer, which is then taken out; "" if it is not
        there yet or, with `progress` BROKEN, cannot be there."""
        if not self._buffer.startswith(opening):
            if not opening.startswith(self._buffer):
                self._leave(Progress.BROKEN)
            return ""
        found = _NAME.match(self._buffer, len(opening), len(opening) + MAX_NAME + 1)
        assert found is not None
        name, end = found[0], found.end()
        is_open = end == len(self._buffer)
        if len(name) > MAX_NAME or not (is_open or (name and self._buffer[end] == ">")):
            self._leave(Progress.BROKEN)
            return ""
        if is_open:
            return ""
        self._buffer = self._buffer[end + 1 :]
        return name

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
