"""Typed reads of a model file's key/value metadata: a wrong or missing key fails by name."""

from __future__ import annotations

# The methods are named after the types they return, so annotations say `builtins.int`.
import builtins
import enum
import math
from collections.abc import Collection, KeysView, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from luce_core.errors import ModelFileError


class Required(enum.Enum):
    """The type of REQUIRED, the default that means "the key must be there"."""

    REQUIRED = enum.auto()


REQUIRED = Required.REQUIRED
_D = TypeVar("_D")
_SHOWN_CHARS = 80


class TypedMetadata:
    """The metadata of one model file. Every read raises ModelFileError naming file and key.

    Scalars are plain Python values; arrays are numpy arrays or sequences. Without a default the
    key must be there; a default is returned as it is, unchecked.
    """

    def __init__(self, path: object, values: Mapping[builtins.str, object]) -> None:
        self.path = builtins.str(path)
        self._values: dict[builtins.str, Any] = dict(values)

    def has(self, key: builtins.str) -> builtins.bool:
        return key in self._values

    def keys(self) -> KeysView[builtins.str]:
        return self._values.keys()

    @property
    def values(self) -> Mapping[builtins.str, object]:
        """All values as the file holds them, read-only: for writing a changed copy of a file."""
        return MappingProxyType(self._values)

    def int(self, key: builtins.str, default: _D | Required = REQUIRED) -> builtins.int | _D:
        if key not in self._values:
            return self._absent(key, "an integer", default)
        value = self._values[key]
        if not _is_int(value):
            raise self.wrong(key, "an integer")
        return builtins.int(value)

    def float(self, key: builtins.str, default: _D | Required = REQUIRED) -> builtins.float | _D:
        """A finite number; an integer in the file is taken as its float."""
        if key not in self._values:
            return self._absent(key, "a number", default)
        value = self._values[key]
        if not (isinstance(value, builtins.float) or _is_int(value)) or not math.isfinite(value):
            raise self.wrong(key, "a finite number")
        return builtins.float(value)

    def bool(self, key: builtins.str, default: _D | Required = REQUIRED) -> builtins.bool | _D:
        if key not in self._values:
            return self._absent(key, "true or false", default)
        value = self._values[key]
        if not isinstance(value, builtins.bool):
            raise self.wrong(key, "true or false")
        return value

    def str(self, key: builtins.str, default: _D | Required = REQUIRED) -> builtins.str | _D:
        if key not in self._values:
            return self._absent(key, "a string", default)
        value = self._values[key]
        if not isinstance(value, builtins.str):
            raise self.wrong(key, "a string")
        return value

    def ints(
        self, key: builtins.str, default: _D | Required = REQUIRED
    ) -> tuple[builtins.int, ...] | _D:
        if key not in self._values:
            return self._absent(key, "an array of integers", default)
        items = _items(self._values[key])
        if items is None or not all(map(_is_int, items)):
            raise self.wrong(key, "an array of integers")
        return tuple(items)

    def floats(
        self, key: builtins.str, default: _D | Required = REQUIRED
    ) -> tuple[builtins.float, ...] | _D:
        if key not in self._values:
            return self._absent(key, "an array of numbers", default)
        items = _items(self._values[key])
        if items is None or not all(isinstance(i, builtins.float) or _is_int(i) for i in items):
            raise self.wrong(key, "an array of numbers")
        return tuple(map(builtins.float, items))

    def strings(
        self, key: builtins.str, default: _D | Required = REQUIRED
    ) -> tuple[builtins.str, ...] | _D:
        if key not in self._values:
            return self._absent(key, "an array of strings", default)
        items = _items(self._values[key])
        if items is None or not all(isinstance(item, builtins.str) for item in items):
            raise self.wrong(key, "an array of strings")
        return tuple(items)

    def bools(
        self, key: builtins.str, default: _D | Required = REQUIRED
    ) -> tuple[builtins.bool, ...] | _D:
        if key not in self._values:
            return self._absent(key, "an array of true and false", default)
        items = _items(self._values[key])
        if items is None or not all(isinstance(item, builtins.bool) for item in items):
            raise self.wrong(key, "an array of true and false")
        return tuple(items)

    def per_layer_ints(
        self, key: builtins.str, count: builtins.int, default: _D | Required = REQUIRED
    ) -> tuple[builtins.int, ...] | _D:
        """`count` integers: the file holds one per layer, or one for all layers."""
        if key in self._values and _is_int(self._values[key]):
            return (self.int(key),) * count
        values = self.ints(key, default)
        if key in self._values and (not isinstance(values, tuple) or len(values) != count):
            raise self.wrong(key, f"an integer or an array of {count} integers, one per layer")
        return values

    def expect_int(
        self,
        key: builtins.str,
        accepted: Collection[builtins.int],
        default: _D | Required = REQUIRED,
    ) -> builtins.int | _D:
        """As `int`, and the value must be among `accepted`: what the caller implements."""
        return self._among(key, self.int(key, default), accepted)

    def expect_bool(
        self,
        key: builtins.str,
        accepted: Collection[builtins.bool],
        default: _D | Required = REQUIRED,
    ) -> builtins.bool | _D:
        """As `bool`, and the value must be among `accepted`: what the caller implements."""
        return self._among(key, self.bool(key, default), accepted)

    def expect_str(
        self,
        key: builtins.str,
        accepted: Collection[builtins.str],
        default: _D | Required = REQUIRED,
    ) -> builtins.str | _D:
        """As `str`, and the value must be among `accepted`: what the caller implements."""
        return self._among(key, self.str(key, default), accepted)

    def wrong(self, key: builtins.str, accepted: builtins.str) -> ModelFileError:
        """The error for a key whose value the caller does not accept; the caller raises it."""
        value = self._values.get(key)
        shown = repr(value.tolist() if isinstance(value, np.ndarray) else value)
        if len(shown) > _SHOWN_CHARS:
            shown = shown[:_SHOWN_CHARS] + "..."
        return ModelFileError(self.path, key, f"must be {accepted}, got {shown}")

    def _absent(self, key: builtins.str, accepted: builtins.str, default: _D | Required) -> _D:
        if isinstance(default, Required):
            raise ModelFileError(self.path, key, f"is missing: must be {accepted}")
        return default

    def _among(self, key: builtins.str, value: _D, accepted: Collection[object]) -> _D:
        if key in self._values and value not in accepted:
            raise self.wrong(key, f"one of {', '.join(map(repr, accepted))}")
        return value


def _is_int(value: object) -> builtins.bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _items(value: object) -> Sequence[Any] | None:
    """The elements of an array value as plain Python objects, None if it is not an array."""
    if isinstance(value, np.ndarray):
        return value.tolist()  # type: ignore[no-any-return]
    return value if isinstance(value, list | tuple) else None
