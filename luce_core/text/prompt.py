"""A rendered chat, in which what users wrote can never turn into a control token.

Control tokens are words such as `<|im_end|>`. Before a template runs, `ControlGuard.protect` puts a
guard character into every such word inside the messages; the template's own words stay whole.
`Tokenizer.encode_prompt` then takes whole words as tokens and drops the guard from the rest.

User-defined tokens (`<think>`, `<tool_call>`) are visible text and stay as they are: a user may
write them, and they then become the same single ids as when the template writes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from luce_core.errors import RequestError
from luce_core.text.literals import literal_pattern

MAX_DEPTH = 64
_SLICE_CHARS = 16 << 10
# Code points that carry no text: noncharacters first, then the private use area.
_GUARD_RANGES = (range(0xFDD0, 0xFDF0), range(0xE000, 0xF900))


@dataclass(frozen=True, slots=True)
class Prompt:
    """Rendered text. `marked` holds `guard` characters ("" if none) inside the users' words.

    `continued` is the unfinished turn that generation goes on with, "" if it starts a new one.
    """

    marked: str
    guard: str = ""
    continued: str = ""

    @property
    def text(self) -> str:
        """What was rendered, for people."""
        return self.marked.replace(self.guard, "") if self.guard else self.marked

    def continues_inside(self, opening: str, closing: str) -> bool:
        """Whether generation begins between an opening mark and its closing one."""
        if self.text.rstrip().endswith(opening):
            return True
        return self.continued.rfind(opening) > self.continued.rfind(closing)


class ControlGuard:
    """Breaks control words in request data. One per chat format; keeps no request state."""

    def __init__(self, control_words: Iterable[str]) -> None:
        words = tuple(control_words)
        self._pattern = literal_pattern(words)
        self._starts = frozenset(word[:size] for word in words for size in range(1, len(word)))
        self._ends = frozenset(word[size:] for word in words for size in range(1, len(word)))
        self._longest = max(map(len, words), default=0)

    def protect(self, value: Any, guard: str) -> Any:
        """A copy of JSON-like data with the guard in every control word, dictionary keys included.

        A string that ends in the first half of a word, or begins with the second half of one, is
        guarded there, so that two neighbours cannot join into a word.
        """
        if isinstance(value, str):
            return self._protect_edges(self._protect_inside(value, guard), guard)
        if isinstance(value, dict):
            return {
                self._protect_inside(k, guard): self.protect(v, guard) for k, v in value.items()
            }
        if isinstance(value, list):
            return [self.protect(item, guard) for item in value]
        return value

    def tail(self, marked: str) -> str:
        """What follows the last control word of a rendered text."""
        last = 0
        if self._pattern is not None:
            for match in self._pattern.finditer(marked):
                last = match.end()
        return marked[last:]

    def _protect_inside(self, text: str, guard: str) -> str:
        if self._pattern is None:
            return text
        pieces: list[str] = []
        start = 0
        # Words may overlap, so the search goes on right behind the guard.
        while match := self._pattern.search(text, start):
            cut = match.start() + 1
            pieces += (text[start:cut], guard)
            start = cut
        pieces.append(text[start:])
        return "".join(pieces)

    def _protect_edges(self, text: str, guard: str) -> str:
        # Templates trim, so the edges are those of the trimmed text.
        body = text.strip()
        sizes = range(1, min(self._longest, len(body)) + 1)
        before = guard if any(body[:size] in self._ends for size in sizes) else ""
        after = guard if any(body[-size:] in self._starts for size in sizes) else ""
        if not (before or after):
            return text
        lead = len(text) - len(text.lstrip())
        return f"{text[:lead]}{before}{body}{after}{text[lead + len(body) :]}"


def pick_marks(value: Any, reserved: str, count: int) -> tuple[str, ...]:
    """Characters that occur neither in the data nor in `reserved`.

    RequestError if the data is nested deeper than MAX_DEPTH, holds something that is not JSON, or
    uses up all 6,432 candidates.
    """
    used = set(reserved)
    _collect(value, used, 0)
    marks: list[str] = []
    for codes in _GUARD_RANGES:
        for code in codes:
            if chr(code) not in used:
                marks.append(chr(code))
                if len(marks) == count:
                    return tuple(marks)
    raise RequestError("the messages use every private Unicode character", param="messages")


def _collect(value: Any, used: set[str], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise RequestError(f"the messages are nested deeper than {MAX_DEPTH}", param="messages")
    if isinstance(value, str):
        # In slices, since one call would keep the interpreter's lock for all of a long text.
        for start in range(0, len(value), _SLICE_CHARS):
            used.update(value[start : start + _SLICE_CHARS])
    elif isinstance(value, dict):
        for key, item in value.items():
            _collect(key, used, depth + 1)
            _collect(item, used, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _collect(item, used, depth + 1)
    elif value is not None and not isinstance(value, bool | int | float):
        raise RequestError(f"messages cannot hold a {type(value).__name__}", param="messages")
