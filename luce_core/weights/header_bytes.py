"""A cursor over the header of a GGUF file that cannot leave the file."""

from __future__ import annotations

import struct
from mmap import mmap
from pathlib import Path

from luce_core.errors import ModelFileError

# A header of this size would hold several vocabularies; beyond it the counts are hostile.
MAX_HEADER_BYTES = 256 << 20
# About three times the largest published vocabulary with its merges, over all arrays of a file.
MAX_ARRAY_STRINGS = 1 << 21
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class HeaderBytes:
    """Reads little-endian fields one after the other.

    Every read checks its bounds first and raises ModelFileError naming the field.
    """

    def __init__(self, path: Path, data: bytes | mmap) -> None:
        self.path = path
        self.data = data
        self.file_bytes = len(data)
        self.limit = min(self.file_bytes, MAX_HEADER_BYTES)
        self.position = 0
        self.strings_left = MAX_ARRAY_STRINGS

    def fault(self, field: str, problem: str) -> ModelFileError:
        return ModelFileError(self.path, field, problem)

    def need(self, count: int, field: str) -> None:
        """Raise unless `count` more bytes lie inside the header's limit."""
        if count <= self.limit - self.position:
            return
        if count <= self.file_bytes - self.position:
            raise self.fault(field, f"the header exceeds {MAX_HEADER_BYTES} bytes")
        raise self.fault(
            field,
            f"needs {count} bytes from byte {self.position}, but the file ends at byte "
            f"{self.file_bytes}: it is cut off or this length is damaged",
        )

    def u32(self, field: str) -> int:
        return int(self.unpack(_U32, field))

    def u64(self, field: str) -> int:
        return int(self.unpack(_U64, field))

    def unpack(self, layout: struct.Struct, field: str) -> int | float:
        self.need(layout.size, field)
        value: int | float = layout.unpack_from(self.data, self.position)[0]
        self.position += layout.size
        return value

    def take(self, count: int, field: str) -> bytes:
        self.need(count, field)
        start = self.position
        self.position = start + count
        return self.data[start : self.position]

    def string(self, field: str, max_bytes: int) -> str:
        """A string with its 64-bit length before it."""
        length = self.u64(f"length of {field}")
        if length > max_bytes:
            raise self.fault(field, f"{length} bytes long; at most {max_bytes} are accepted")
        try:
            return str(self.take(length, field), "utf-8")
        except UnicodeDecodeError as error:
            raise self.fault(field, f"is not UTF-8: {error.reason} at byte {error.start}") from None
