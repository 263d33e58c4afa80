"""Paths and words of the command line as text that can be shown and sent."""

from __future__ import annotations


def readable(word: object) -> str:
    """`str(word)` as valid Unicode.

    Under an ASCII locale Python keeps the other bytes of an argument as lone surrogates, which
    open files but are no text: here they are read as UTF-8.
    """
    return str(word).encode(errors="surrogateescape").decode(errors="replace")
