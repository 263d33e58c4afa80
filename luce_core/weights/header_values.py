"""Metadata values of a GGUF header: scalars, strings and flat arrays of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from luce_core.weights.header_bytes import MAX_ARRAY_STRINGS, MAX_HEADER_BYTES, HeaderBytes

STRING = 8
ARRAY = 9
BOOL = 7

# Value type ids of the GGUF specification.
SCALARS: Mapping[int, struct.Struct] = MappingProxyType(
    {
        0: struct.Struct("<B"),
        1: struct.Struct("<b"),
        2: struct.Struct("<H"),
        3: struct.Struct("<h"),
        4: struct.Struct("<I"),
        5: struct.Struct("<i"),
        6: struct.Struct("<f"),
        BOOL: struct.Struct("<B"),
        10: struct.Struct("<Q"),
        11: struct.Struct("<q"),
        12: struct.Struct("<d"),
    }
)

_STRING_LENGTH = struct.Struct("<Q")


def read_value(source: HeaderBytes, key: str) -> object:
    """The value of `key`: int, float, bool, str, a numpy array, or a list of str."""
    kind = source.u32(f"type of {key}")
    if kind == STRING:
        return source.string(key, MAX_HEADER_BYTES)
    if kind == ARRAY:
        return _read_array(source, key)
    if kind not in SCALARS:
        raise source.fault(key, f"unknown value type {kind}; 0 to 12 are accepted")
    value = source.unpack(SCALARS[kind], key)
    if kind != BOOL:
        return value
    if value > 1:
        raise source.fault(key, f"must be true (1) or false (0), got byte {value}")
    return bool(value)


def _read_array(source: HeaderBytes, key: str) -> object:
    kind = source.u32(f"element type of {key}")
    count = source.u64(f"element count of {key}")
    if kind == STRING:
        return _read_strings(source, key, count)
    if kind == ARRAY:
        raise source.fault(key, "arrays of arrays are not accepted")
    if kind not in SCALARS:
        raise source.fault(key, f"unknown element type {kind}; 0 to 12 are accepted")
    layout = SCALARS[kind]
    # Bounds are checked before anything is multiplied into memory.
    values = np.frombuffer(source.take(count * layout.size, key), np.dtype(layout.format))
    if kind != BOOL:
        return values
    if values.size and values.max() > 1:
        raise source.fault(key, f"must hold true (1) and false (0), got byte {values.max()}")
    return values.astype(np.bool_)


def _read_strings(source: HeaderBytes, key: str, count: int) -> list[str]:
    """A tight loop over locals: a vocabulary is read at every start."""
    if count > source.strings_left:
        raise source.fault(
            key, f"{count} strings; at most {MAX_ARRAY_STRINGS} are accepted in all arrays"
        )
    source.strings_left -= count
    source.need(count * _STRING_LENGTH.size, key)
    data, position, limit = source.data, source.position, source.limit
    unpack = _STRING_LENGTH.unpack_from
    strings: list[str] = []
    try:
        for _ in range(count):
            start = position + 8
            position = start + unpack(data, position)[0]
            if position > limit:
                source.position = start
                source.need(position - start, f"{key}[{len(strings)}]")
            strings.append(str(data[start:position], "utf-8"))
    except struct.error:
        source.position = position
        source.need(_STRING_LENGTH.size, f"length of {key}[{len(strings)}]")
    except UnicodeDecodeError as error:
        raise source.fault(f"{key}[{len(strings)}]", f"is not UTF-8: {error.reason}") from None
    source.position = position
    return strings
