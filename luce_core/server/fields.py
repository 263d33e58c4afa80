"""Typed reads of a JSON object from a client. null counts as absent; nothing is coerced."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from luce_core.errors import RequestError

_SHOWN_CHARS = 60
_MAX_EXACT = 1 << 53


class Fields:
    """One request body; every read raises RequestError (400) naming field, value and what fits."""

    def __init__(self, values: Mapping[str, Any], *, within: str = "") -> None:
        self._values = values
        self._within = within

    def name(self, field: str) -> str:
        """The field as `param` names it."""
        return f"{self._within}.{field}" if self._within else field

    def get(self, field: str) -> Any:
        return self._values.get(field)

    def refuse(self, field: str, accepted: str) -> RequestError:
        name = self.name(field)
        value = shown(self._values.get(field))
        return RequestError(f"{name} must be {accepted}, got {value}", param=name)

    def integer(
        self, field: str, default: int, *, least: int, most: int, accepted: str = ""
    ) -> int:
        found = self.optional_integer(field, least=least, most=most, accepted=accepted)
        return default if found is None else found

    def optional_integer(
        self, field: str, *, least: int, most: int, accepted: str = ""
    ) -> int | None:
        value = self._values.get(field)
        if value is None:
            return None
        whole = as_integer(value)
        if whole is None or not least <= whole <= most:
            raise self.refuse(field, accepted or f"an integer from {least} to {most}")
        return whole

    def number(self, field: str, default: float, *, least: float, most: float) -> float:
        value = self._values.get(field)
        if value is None:
            return default
        number = as_number(value)
        if number is None or not least <= number <= most:
            raise self.refuse(field, f"a number from {least:g} to {most:g}")
        return number

    def boolean(self, field: str, default: bool) -> bool:
        value = self._values.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(field, "true or false")
        return value

    def text(self, field: str) -> str | None:
        value = self._values.get(field)
        if value is not None and not isinstance(value, str):
            raise self.refuse(field, "a string")
        return value

    def object(self, field: str) -> dict[str, Any]:
        value = self._values.get(field)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.refuse(field, "an object")
        return value


def as_integer(value: object) -> int | None:
    """The value if it is a whole JSON number (2.0 is), else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < _MAX_EXACT:
        return int(value)
    return None


def as_number(value: object) -> float | None:
    """The value if it is a finite JSON number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def shown(value: object) -> str:
    """A client's value for a message, cut short."""
    if isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
