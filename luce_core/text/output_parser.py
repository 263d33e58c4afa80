"""Splitting generated text into what the model says, what it thinks and which tools it calls.

Newlines around a thinking block belong to its markup: those right after the opening tag, right
before the closing tag and right after it are dropped, as chat templates put them there when they
write the block back into a later prompt. All other text is passed on unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

from luce_core.text.prompt import Prompt


class PieceKind(StrEnum):
    """A CALL piece is the name of the called tool; the ARGUMENTS that follow it, up to the next
    CALL, are the text of one JSON object. If the model broke off, that text is a beginning of it.
    """

    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"
    ARGUMENTS = "arguments"


class Piece(NamedTuple):
    kind: PieceKind
    text: str


class OutputParser(Protocol):
    """Per generation. The pieces do not depend on how the text was cut.

    `tags` are the marks it looks for: those that are control tokens must reach it as text.
    """

    @property
    def tags(self) -> tuple[str, ...]: ...

    @property
    def held(self) -> int:
        """How many characters are held back, undecided."""

    @property
    def in_reasoning(self) -> bool:
        """Whether the text that comes next is reasoning."""

    def push(self, text: str) -> list[Piece]: ...

    def flush(self) -> list[Piece]:
        """What was held back, now that no more text comes."""


class PlainParser:
    """All text is content."""

    tags: tuple[str, ...] = ()
    held = 0
    in_reasoning = False

    def push(self, text: str) -> list[Piece]:
        return [Piece(PieceKind.CONTENT, text)] if text else []

    def flush(self) -> list[Piece]:
        return []


# What a chat format is paired with: makes the parser for one generation that follows the prompt.
ParserFactory = Callable[[Prompt], OutputParser]


class _State(StrEnum):
    START = "start"
    THINK_START = "think_start"
    THINK = "think"
    AFTER = "after"
    CONTENT = "content"


class ThinkParser:
    """One thinking block at the start of the text, then content.

    The opening tag counts only before any content, so that an answer may speak about tags; it may
    be missing when the prompt has written it (`starts_inside`), and is dropped if the model repeats
    it. A block that never closes is all reasoning.
    """

    def __init__(
        self, open: str = "<think>", close: str = "</think>", *, starts_inside: bool = False
    ) -> None:
        self._open = open
        self._close = close
        self._state = _State.THINK_START if starts_inside else _State.START
        self._buffer = ""

    @property
    def tags(self) -> tuple[str, ...]:
        return (self._open, self._close)

    @property
    def held(self) -> int:
        return len(self._buffer)

    @property
    def in_reasoning(self) -> bool:
        return self._state in (_State.THINK_START, _State.THINK)

    def push(self, text: str) -> list[Piece]:
        if self._state is _State.CONTENT:
            return [Piece(PieceKind.CONTENT, text)] if text else []
        self._buffer += text
        pieces: list[Piece] = []
        if self._state is _State.START:
            pieces += self._find_opening()
        if self._state is _State.THINK_START:
            self._skip_opening()
        if self._state is _State.THINK:
            pieces += self._find_closing()
        if self._state is _State.AFTER:
            pieces += self._skip_newlines()
        return pieces

    def flush(self) -> list[Piece]:
        text, self._buffer = self._buffer, ""
        kind = PieceKind.REASONING if self.in_reasoning else PieceKind.CONTENT
        return [Piece(kind, text)] if text else []

    def _find_opening(self) -> list[Piece]:
        body = self._buffer.lstrip()
        if body.startswith(self._open):
            self._buffer = body[len(self._open) :]
            self._state = _State.THINK_START
            return []
        return [] if self._open.startswith(body) else self._all_content()

    def _skip_opening(self) -> None:
        body = self._buffer.lstrip("\n")
        while body.startswith(self._open):
            body = body[len(self._open) :].lstrip("\n")
        self._buffer = body
        if not self._open.startswith(body):
            self._state = _State.THINK

    def _find_closing(self) -> list[Piece]:
        before, found, after = self._buffer.partition(self._close)
        if found:
            thought = before.rstrip("\n")
            self._buffer = after
            self._state = _State.AFTER
        else:
            thought = before[: len(before) - partial_suffix(before, self._close)].rstrip("\n")
            self._buffer = before[len(thought) :]
        return [Piece(PieceKind.REASONING, thought)] if thought else []

    def _skip_newlines(self) -> list[Piece]:
        self._buffer = self._buffer.lstrip("\n")
        return self._all_content() if self._buffer else []

    def _all_content(self) -> list[Piece]:
        text, self._buffer = self._buffer, ""
        self._state = _State.CONTENT
        return [Piece(PieceKind.CONTENT, text)]


def partial_suffix(text: str, word: str) -> int:
    """Length of the longest end of the text that begins the word, the whole word excluded."""
    for size in range(min(len(word) - 1, len(text)), 0, -1):
        if text.endswith(word[:size]):
            return size
    return 0


def plain_parser(prompt: Prompt) -> OutputParser:
    return PlainParser()


def think_parser(prompt: Prompt) -> OutputParser:
    """For models that think between `<think>` and `</think>`."""
    return ThinkParser(starts_inside=prompt.continues_inside("<think>", "</think>"))
