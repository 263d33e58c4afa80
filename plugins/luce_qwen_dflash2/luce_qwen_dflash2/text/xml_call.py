"""A call as Qwen3-Coder and Qwen3.5 write it: tags with the values as plain text between them.

<function=name>
<parameter=argument>
value
</parameter>
</function>
"""

from __future__ import annotations

import re

from luce_core.text.call_reader import MAX_NAME, MAX_SPACE, Progress
from luce_core.text.output_parser import Piece, PieceKind, partial_suffix
from luce_core.text.tag_call import Place, TagCall
from luce_qwen_dflash2.text.argument_types import ArgumentTypes, quoted
from luce_qwen_dflash2.text.argument_value import ArgumentValue, argument_value

FUNCTION = "<function="
PARAMETER = "<parameter="
END_PARAMETER = "</parameter>"
END_FUNCTION = "</function>"
END_CALL = "</tool_call>"
_NAME = re.compile(r"[^\s<>]*")


def opening_tag(name: str) -> str | None:
    """The tag that a call of this name begins with; None if no tag can hold the name."""
    fits = name and len(name) <= MAX_NAME and _NAME.fullmatch(name)
    return f"{FUNCTION}{name}>" if fits else None


class XmlCall(TagCall):
    """A CallReader from `<function=` on.

    One newline after the opening tag of a value and one before its closing tag are markup. The
    closing tag counts only where an argument can end, before the next one or the end of the call,
    so a value may speak of it.
    """

    argument_tag = PARAMETER
    end_tag = END_FUNCTION
    end_block = END_CALL

    def __init__(self, types: ArgumentTypes) -> None:
        super().__init__()
        self._types = types
        self._value: ArgumentValue | None = None
        self._is_first = True  # of the characters of a value
        self._searched = 0  # up to here no closing tag begins in the buffer

    @property
    def held(self) -> int:
        return len(self._buffer) + (0 if self._value is None else self._value.held)

    def flush(self) -> list[Piece]:
        text, self._buffer = self._buffer, ""
        if self._value is not None:
            cut = self._value.push(text) if text else ""
            cut += self._value.cut()
            return [Piece(PieceKind.ARGUMENTS, cut)] if cut else []
        return [Piece(PieceKind.CONTENT, text)] if text else []

    def _read_head(self) -> bool:
        name = self._tag_name(FUNCTION)
        if name:
            self._name = name
            self._place = Place.BETWEEN
        return bool(name)

    def _open_argument(self) -> str:
        argument = self._tag_name(PARAMETER)
        if not argument:
            return ""
        self._value = argument_value(self._types.of(self._name, argument))
        self._is_first = True
        self._searched = 0
        return f"{quoted(argument)}: "

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
            self._place = Place.BETWEEN
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
                if body.startswith(self.follows()):
                    return at, True
                if any(mark.startswith(body) for mark in self.follows()):
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
