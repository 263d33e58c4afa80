"""What the readers of tool calls in their several forms have in common."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from luce_core.text.output_parser import Piece

# Longer runs of white space than this are no markup: a model that repeats itself is let go.
MAX_SPACE = 32
MAX_NAME = 128


class Progress(StrEnum):
    READING = "reading"
    ENDED = "ended"
    BROKEN = "broken"  # this cannot become a call, or no longer


class CallReader(Protocol):
    """Reads one call, whatever pieces its text comes in.

    `has_begun`: a CALL piece has come out; what is read before that is held and can still turn out
    to be no call. When `progress` leaves READING, `rest` is the text that was not taken.
    """

    has_begun: bool
    progress: Progress
    rest: str

    @property
    def held(self) -> int:
        """How many characters of a call that has begun wait for more text."""

    def push(self, text: str) -> list[Piece]: ...

    def flush(self) -> list[Piece]:
        """What a call that has begun holds when the text ends inside it."""


class CallMarkup(Protocol):
    """How one family of models writes calls: inside a pair of tags, or with a word of their own.

    `direct`: words that begin a call outside the tags as well.
    """

    opening: str
    closing: str
    direct: tuple[str, ...]

    def reader(self, start: str) -> CallReader | None:
        """For a call whose text begins with this character; None if none can."""
