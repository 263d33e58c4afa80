"""The tools of a chat, and the parser that finds calls of them behind a reasoning parser."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from luce_core.text.output_parser import OutputParser, Piece, PieceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call. `spec` is the client's own object, for the template;
    `parameters` is the JSON schema of its arguments, {} if none is given."""

    name: str
    parameters: Mapping[str, Any]
    spec: Mapping[str, Any]


# Makes the parser for one generation. It gets the content only, thinking is taken out before.
ToolParserFactory = Callable[[Sequence[Tool]], OutputParser]


class CallingParser:
    """What `reasoning` finds to be content goes on to `calls`; an OutputParser made of two."""

    def __init__(self, reasoning: OutputParser, calls: OutputParser) -> None:
        self._reasoning = reasoning
        self._calls = calls

    @property
    def tags(self) -> tuple[str, ...]:
        return (*self._reasoning.tags, *self._calls.tags)

    @property
    def held(self) -> int:
        return self._reasoning.held + self._calls.held

    @property
    def in_reasoning(self) -> bool:
        return self._reasoning.in_reasoning

    def push(self, text: str) -> list[Piece]:
        return self._split(self._reasoning.push(text))

    def flush(self) -> list[Piece]:
        return self._split(self._reasoning.flush()) + self._calls.flush()

    def _split(self, pieces: list[Piece]) -> list[Piece]:
        split: list[Piece] = []
        for piece in pieces:
            if piece.kind is PieceKind.CONTENT:
                split += self._calls.push(piece.text)
            else:
                split.append(piece)
        return split
