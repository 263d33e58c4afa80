"""Refuses texts that cannot fit, by their length, before anybody spends time on them."""

from __future__ import annotations

from typing import Any

from luce_core.errors import RequestError
from luce_core.server.served_model import ServedModel

# Normalisation (NFC) joins up to four characters into one, and templates trim.
_SLACK = 4


def refuse_hopeless(model: ServedModel, value: Any, param: str) -> None:
    """RequestError (400) if the strings in JSON-like data are too long for the context."""
    most = _SLACK * model.max_context * model.text.tokenizer.longest_token_chars
    size = 0
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, dict):
            todo += item.values()
        elif isinstance(item, list | tuple):
            todo += item
    if size > most:
        raise RequestError(
            f"This model's maximum context length is {model.max_context} tokens, but the prompt "
            f"has {size} characters, which is more than can fit.",
            param=param,
            code="context_length_exceeded",
        )
