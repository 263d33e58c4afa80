"""A call as JSON: `{"name": ..., "arguments": {...}}`."""

from __future__ import annotations

import orjson

from luce_core.text.call_reader import MAX_NAME, Progress
from luce_core.text.output_parser import Piece, PieceKind
from luce_qwen_dflash2.text.json_scanner import JsonScanner

# What turns out to be no call is searched again, so the time for that is bounded.
MAX_UNDECIDED = 1 << 16


class JsonCall:
    """A CallReader from the opening brace on.

    With the name first, as templates ask for, the arguments stream as the model writes them. In any
    other order, or with the arguments as a JSON text inside a string, the call comes out whole, if
    it has at most MAX_UNDECIDED characters.
    Arguments that are null or missing are `{}`; other keys are dropped.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.progress = Progress.READING
        self.rest = ""
        self.held = 0
        self._scanner = JsonScanner()
        self._streams = False
        self._json: list[str] = []  # what has come, until the call begins
        self._arguments: tuple[int, int] | None = None  # where they stand in it

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        arguments: list[str] = []
        for position, char in enumerate(text):
            depth = self._scanner.depth
            shown = self._scanner.push(char)
            if shown is None or len(self._json) > MAX_UNDECIDED:
                self._leave(Progress.BROKEN, text[position:])
                break
            if self._streams:
                arguments.append(shown)
                self._streams = self._scanner.depth > 1
            elif not self.has_begun:
                pieces += self._before_call(shown, depth)
            if self._scanner.is_complete:
                if not self.has_begun:
                    pieces += self._whole()
                rest = text[position + 1 :]
                self._leave(Progress.ENDED if self.has_begun else Progress.BROKEN, rest)
                break
        if arguments:
            pieces.append(Piece(PieceKind.ARGUMENTS, "".join(arguments)))
        return pieces

    def flush(self) -> list[Piece]:
        return []

    def _before_call(self, shown: str, depth: int) -> list[Piece]:
        if depth == 1 and self._scanner.depth == 2 and self._scanner.key == "arguments":
            name = _name_in("".join(self._json) + "null}")
            if shown == "{" and name is not None:
                self.has_begun = self._streams = True
                return [Piece(PieceKind.CALL, name), Piece(PieceKind.ARGUMENTS, shown)]
            self._arguments = (len(self._json), len(self._json)) if shown == "{" else None
        self._json.append(shown)
        if depth == 2 and self._scanner.depth == 1 and self._scanner.key == "arguments":
            start = self._arguments
            self._arguments = None if start is None else (start[0], len(self._json))
        return []

    def _whole(self) -> list[Piece]:
        """The call of a complete object, or nothing if it is none."""
        text = "".join(self._json)
        name = _name_in(text)
        if name is None:
            return []
        if self._arguments is None:
            arguments = _plain_arguments(orjson.loads(text).get("arguments"))
        else:
            # As written: a number may have more digits than a parser keeps.
            arguments = "".join(self._json[slice(*self._arguments)])
        if arguments is None:
            return []
        self.has_begun = True
        return [Piece(PieceKind.CALL, name), Piece(PieceKind.ARGUMENTS, arguments)]

    def _leave(self, progress: Progress, rest: str) -> None:
        self.progress = progress
        self.rest = rest


def _name_in(text: str) -> str | None:
    try:
        name = orjson.loads(text).get("name")
    except orjson.JSONDecodeError:
        return None
    return name if isinstance(name, str) and 0 < len(name) <= MAX_NAME else None


def _plain_arguments(value: object) -> str | None:
    """Arguments that are no object: none at all, or an object written as a text."""
    if value is None:
        return "{}"
    if isinstance(value, str):
        try:
            return value if isinstance(orjson.loads(value), dict) else None
        except orjson.JSONDecodeError:
            return None
    return None
