"""Prompts of `luce bench`: short coding tasks, numbered so that no two of a run are alike."""

from __future__ import annotations

import random

TASKS = (
    "Write a Python function that merges overlapping intervals given as pairs.",
    "Write a C function that copies a string into a buffer without overflowing it.",
    "Write a Rust function that counts how often each word occurs in a text.",
    "Write a Go program that serves the files of a folder over HTTP.",
    "Write a SQL query that finds customers without an order in the last year.",
    "Write a shell script that deletes log files older than thirty days.",
    "Write a Python class for a matrix with addition, multiplication and transposition.",
    "Write a JavaScript function that groups a list of objects by one of their keys.",
    "Write a C++ class that owns a file handle and closes it when it goes away.",
    "Write a Java method that finds the longest common prefix of several strings.",
    "Write a TypeScript type and a function that validate a postal address.",
    "Write a Python script that reads a CSV file and prints the mean of each column.",
    "Write a function in any language that solves the towers of Hanoi, and explain it.",
    "Write a unit test for a function that rounds prices to two decimals.",
    "Write a Dockerfile for a small web service written in Python.",
    "Write a regular expression for version numbers such as 1.20.3, and explain it.",
)

# Common words, which most vocabularies hold as one token each with the space before them.
_FILLER = ("time", "people", "way", "day", "thing", "world", "state", "group", "place", "work")
_NUMBERS = 100_000


class Prompts:
    """Numbered prompts in a fixed order; `seed` chooses the first number.

    The number comes first, so that a cache of prompt prefixes has nothing to offer, and always has
    five digits. With `filler` words in between all prompts ask the first task, so that their
    lengths are equal.
    """

    def __init__(self, seed: int, *, filler: int = 0) -> None:
        self.filler = filler
        self._next = random.Random(seed).randrange(_NUMBERS)
        self._made = 0

    def take(self, count: int) -> list[str]:
        """The next `count` prompts."""
        return [self._make() for _ in range(count)]

    def _make(self) -> str:
        number = self._next
        self._next = (number + 1) % _NUMBERS
        self._made += 1
        if not self.filler:
            return f"[{number:05}] {TASKS[(self._made - 1) % len(TASKS)]}"
        words = (_FILLER[(number + i) % len(_FILLER)] for i in range(self.filler))
        return f"[{number:05}] {' '.join(words)}\n\n{TASKS[0]}"
