"""Finding tool calls in an answer."""

from __future__ import annotations

from enum import StrEnum

from luce_core.text.call_reader import MAX_SPACE, CallMarkup, CallReader, Progress
from luce_core.text.literals import literal_pattern
from luce_core.text.output_parser import Piece, PieceKind

_MAX_NEWLINES = 8


class _Place(StrEnum):
    TEXT = "text"
    OPENED = "opened"  # behind the opening tag
    CALL = "call"
    CLOSING = "closing"  # behind a call, before the closing tag
    BEHIND = "behind"  # behind the closing tag


class CallFinder:
    """An OutputParser for content: the calls that one markup describes, and what stands around
    them.

    The closing tag may be missing. What looks like a call and is none stays content, every
    character of it. Once a call has begun, text that breaks its form is content; its arguments then
    stay as far as they came. Newlines next to a call separate the texts before and behind it, and
    are dropped where there is no text on one side.
    """

    in_reasoning = False

    def __init__(self, markup: CallMarkup, *, tags: tuple[str, ...]) -> None:
        """`tags`: those words of the markup that may be tokens of their own."""
        self.tags = tags
        self._markup = markup
        self._marks = (markup.opening, *markup.direct)
        pattern = literal_pattern(self._marks)
        assert pattern is not None
        self._find_mark = pattern.search
        self._place = _Place.TEXT
        self._buffer = ""
        self._newlines = ""  # not yet put out, before what comes next
        self._has_content = False
        self._has_calls = False
        self._mark = ""
        self._reader: CallReader | None = None
        self._since_mark: list[str] = []  # until the call begins
        self._since_mark_size = 0

    @property
    def held(self) -> int:
        """Newlines that may still be dropped count as decided once a call stands before them."""
        size = len(self._buffer)
        if self._place is _Place.OPENED:
            size += len(self._mark)
        if self._reader is not None:
            if self._reader.has_begun:
                return size + self._reader.held
            size += len(self._mark) + self._since_mark_size
        return size

    def push(self, text: str) -> list[Piece]:
        self._buffer += text
        steps = {
            _Place.TEXT: self._read_text,
            _Place.OPENED: self._read_opened,
            _Place.CALL: self._read_call,
            _Place.CLOSING: self._read_closing,
            _Place.BEHIND: self._read_behind,
        }
        pieces: list[Piece] = []
        while self._buffer and steps[self._place](pieces):
            pass
        return pieces

    def flush(self) -> list[Piece]:
        pieces: list[Piece] = []
        reader = self._reader
        if reader is not None and reader.has_begun:
            return reader.flush()
        if reader is not None or self._place is _Place.OPENED:
            self._content(pieces, self._mark + "".join(self._since_mark))
        self._content(pieces, self._buffer)
        self._buffer = ""
        return pieces

    def _content(self, pieces: list[Piece], text: str) -> None:
        if not text:
            return
        if self._newlines and (self._has_content or not self._has_calls):
            text = self._newlines + text
        self._newlines = ""
        self._has_content = True
        pieces.append(Piece(PieceKind.CONTENT, text))

    def _read_text(self, pieces: list[Piece]) -> bool:
        found = self._find_mark(self._buffer)
        if found is None:
            end = self._undecided(self._buffer)
            self._content(pieces, self._buffer[:end])
            self._buffer = self._buffer[end:]
            return False
        end = _without_newlines(self._buffer, found.start())
        self._content(pieces, self._buffer[:end])
        self._newlines = (self._newlines + self._buffer[end : found.start()])[:_MAX_NEWLINES]
        self._mark = found[0]
        self._buffer = self._buffer[found.end() :]
        self._place = _Place.OPENED
        if self._mark != self._markup.opening:
            reader = self._markup.reader(self._mark[0])
            assert reader is not None
            self._begin(reader)
            self._feed(pieces, self._mark)
        return True

    def _undecided(self, text: str) -> int:
        """Where a mark, or the newlines before one, may have begun."""
        end = text.rfind("<")
        if end < 0 or not any(mark.startswith(text[end:]) for mark in self._marks):
            end = len(text)
        return _without_newlines(text, end)

    def _read_opened(self, pieces: list[Piece]) -> bool:
        body = self._buffer.lstrip()
        is_near = len(self._buffer) - len(body) <= MAX_SPACE
        if is_near and not body:
            return False
        reader = self._markup.reader(body[0]) if is_near else None
        if reader is None:
            self._give_up(pieces)
            return True
        self._begin(reader)
        self._keep(self._buffer[: len(self._buffer) - len(body)])
        self._buffer = body
        return True

    def _begin(self, reader: CallReader) -> None:
        self._reader = reader
        self._place = _Place.CALL

    def _keep(self, text: str) -> None:
        self._since_mark.append(text)
        self._since_mark_size += len(text)

    def _forget(self) -> None:
        self._since_mark = []
        self._since_mark_size = 0

    def _read_call(self, pieces: list[Piece]) -> bool:
        text, self._buffer = self._buffer, ""
        self._keep(text)
        return self._feed(pieces, text)

    def _feed(self, pieces: list[Piece], text: str) -> bool:
        reader = self._reader
        assert reader is not None
        pieces += reader.push(text)
        if reader.has_begun:
            self._has_calls = True
            self._forget()
        if reader.progress is Progress.READING:
            return True
        if reader.has_begun:
            self._reader = None
            self._buffer = reader.rest
            self._place = _Place.CLOSING
        else:
            self._buffer = "".join(self._since_mark)
            self._give_up(pieces)
        return True

    def _give_up(self, pieces: list[Piece]) -> None:
        """The mark was text; what follows it is looked at again."""
        self._reader = None
        self._forget()
        self._place = _Place.TEXT
        self._content(pieces, self._mark)

    def _read_closing(self, pieces: list[Piece]) -> bool:
        self._buffer = self._buffer.lstrip()
        closing = self._markup.closing
        if closing.startswith(self._buffer) and self._buffer != closing:
            return False
        self._buffer = self._buffer.removeprefix(closing)
        self._place = _Place.BEHIND
        return True

    def _read_behind(self, pieces: list[Piece]) -> bool:
        body = self._buffer.lstrip("\n")
        newlines = self._buffer[: len(self._buffer) - len(body)]
        self._newlines = (self._newlines + newlines)[:_MAX_NEWLINES]
        self._buffer = body
        if body:
            self._place = _Place.TEXT
        return bool(body)


def _without_newlines(text: str, end: int) -> int:
    """`end`, moved before the last newlines that stand there."""
    least = max(0, end - _MAX_NEWLINES)
    while end > least and text[end - 1] == "\n":
        end -= 1
    return end
