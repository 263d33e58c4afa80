"""A call as DeepSeek V4 writes it: tags with the values as plain text between them.

<｜DSML｜invoke name="function">
<｜DSML｜parameter name="argument" string="true">value</｜DSML｜parameter>
</｜DSML｜invoke>
"""

from __future__ import annotations

import re

import orjson

from luce_core.text.call_reader import MAX_NAME, Progress
from luce_core.text.output_parser import Piece, PieceKind, partial_suffix
from luce_core.text.tag_call import Place, TagCall
from luce_deepseek_v4.text.markup import (
    END_CALLS,
    END_INVOKE,
    END_PARAMETER,
    INVOKE,
    PARAMETER,
)

_NAME = rf'\s+name="([^"<>]{{1,{MAX_NAME}}})"'
_INVOKE_TAG = re.compile(rf"{INVOKE}{_NAME}\s*>")
_PARAMETER_TAG = re.compile(rf'{PARAMETER}{_NAME}(?:\s+string="(true|false)")?\s*>')
_MAX_TAG = MAX_NAME + 64


class DsmlCall(TagCall):
    """A CallReader from `<｜DSML｜invoke` on.

    A value marked `string="true"` streams as a JSON string. Any other comes out once it is whole,
    as it is written if that is JSON, else as a string.
    """

    argument_tag = PARAMETER
    end_tag = END_INVOKE
    end_block = END_CALLS

    def __init__(self) -> None:
        super().__init__()
        self._is_string = False
        self._value: list[str] = []  # of an argument that is no string
        self._value_size = 0

    @property
    def held(self) -> int:
        return len(self._buffer) + self._value_size

    def flush(self) -> list[Piece]:
        text, self._buffer = self._buffer, ""
        if self._place is not Place.VALUE:
            return [Piece(PieceKind.CONTENT, text)] if text else []
        cut = _quoted(text)[1:-1] if self._is_string else "".join((*self._value, text))
        return [Piece(PieceKind.ARGUMENTS, cut)] if cut else []

    def _read_head(self) -> bool:
        tag = self._tag(INVOKE, _INVOKE_TAG)
        if tag is not None:
            self._name = tag[1]
            self._place = Place.BETWEEN
        return tag is not None

    def _open_argument(self) -> str:
        tag = self._tag(PARAMETER, _PARAMETER_TAG)
        if tag is None:
            return ""
        self._is_string = tag[2] == "true"
        return f"{_quoted(tag[1])}: " + ('"' if self._is_string else "")

    def _read_value(self, pieces: list[Piece]) -> bool:
        before, closing, after = self._buffer.partition(END_PARAMETER)
        if closing:
            self._buffer = after
            self._place = Place.BETWEEN
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


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()
