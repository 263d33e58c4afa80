"""What readers of calls that are made of tags have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import ClassVar

from luce_core.text.call_reader import MAX_SPACE, Progress
from luce_core.text.output_parser import Piece, PieceKind


class Place(StrEnum):
    HEAD = "head"
    BETWEEN = "between"
    VALUE = "value"


class TagCall(ABC):
    """A CallReader for a tag with the function's name, tags around each argument's value, and a
    closing tag. It begins with the first argument or the closing tag. A call that goes on with the
    end of the block after an argument has ended.

    A form of markup gives the three tags, and reads the head (`_read_head`), an argument's opening
    tag (`_open_argument`) and values (`_read_value`): each from the front of `_buffer`, and says
    whether it could go on.
    """

    argument_tag: ClassVar[str]  # how the opening tag of an argument begins
    end_tag: ClassVar[str]
    end_block: ClassVar[str]

    def __init__(self) -> None:
        self.has_begun = False
        self.progress = Progress.READING
        self.rest = ""
        self._place = Place.HEAD
        self._name = ""
        self._buffer = ""

    def push(self, text: str) -> list[Piece]:
        self._buffer += text
        pieces: list[Piece] = []
        while self.progress is Progress.READING and self._read(pieces):
            pass
        return pieces

    def _read(self, pieces: list[Piece]) -> bool:
        if self._place is Place.HEAD:
            return self._read_head()
        return (
            self._read_between(pieces) if self._place is Place.BETWEEN else self._read_value(pieces)
        )

    @abstractmethod
    def _read_head(self) -> bool:
        """Reads the function's name."""

    @abstractmethod
    def _open_argument(self) -> str:
        """The JSON text that an argument begins with; "" if its tag is not all there yet, or not
        what it must be, with `progress` BROKEN."""

    @abstractmethod
    def _read_value(self, pieces: list[Piece]) -> bool:
        """Reads an argument's value, and its closing tag."""

    def _read_between(self, pieces: list[Piece]) -> bool:
        body = self._buffer.lstrip()
        if self.has_begun:
            self._buffer = body
        elif len(self._buffer) - len(body) > MAX_SPACE:
            self._leave(Progress.BROKEN)
            return False
        if body.startswith(self.argument_tag):
            self._buffer = body
            opened = self._open_argument()
            if not opened:
                return False
            start = "{" if self._begin(pieces) else ", "
            pieces.append(Piece(PieceKind.ARGUMENTS, start + opened))
            self._place = Place.VALUE
            return True
        ends = body.startswith(self.end_tag)
        if ends or (self.has_begun and body.startswith(self.end_block)):
            pieces.append(Piece(PieceKind.ARGUMENTS, "{}" if self._begin(pieces) else "}"))
            self._buffer = body[len(self.end_tag) :] if ends else body
            self._leave(Progress.ENDED)
        elif not any(tag.startswith(body) for tag in self.follows()):
            self._leave(Progress.BROKEN)
        return False

    @classmethod
    def follows(cls) -> tuple[str, ...]:
        """What may stand behind an argument."""
        return (cls.argument_tag, cls.end_tag, cls.end_block)

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
