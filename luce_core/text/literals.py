"""Finding fixed words in a text: one regular expression built as a trie, longest match first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any


def literal_pattern(words: Iterable[str]) -> re.Pattern[str] | None:
    """Matches any of the words, the longest at the earliest place; None without words.

    A trie keeps a scan linear even with thousands of words that begin alike.
    """
    trie: dict[str, Any] = {}
    for word in words:
        node = trie
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}
    return re.compile(_alternatives(trie)) if trie else None


def _alternatives(node: dict[str, Any]) -> str:
    ends_here = "" in node
    branches: list[str] = []
    for char, child in node.items():
        if char:
            branches.append(_chain(char, child))
    if not branches:
        return ""
    if len(branches) == 1 and not ends_here:
        return branches[0]
    return f"(?:{'|'.join(branches)}){'?' if ends_here else ''}"


def _chain(first: str, node: dict[str, Any]) -> str:
    """A branch; a run of single children is written flat, so that nesting stays shallow."""
    text = [re.escape(first)]
    while len(node) == 1 and "" not in node:
        char, node = next(iter(node.items()))
        text.append(re.escape(char))
    return "".join(text) + _alternatives(node)
