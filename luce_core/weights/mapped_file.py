"""A file in memory without reading it: pages arrive when they are touched."""

from __future__ import annotations

import mmap
import sys
from dataclasses import dataclass
from pathlib import Path

from luce_core.errors import ModelFileError

# Python 3.11 has no name for it. A private writable map otherwise counts against the commit limit
# in full, and the kernel refuses a model that is larger than RAM and swap together.
_LINUX_MAP_NORESERVE = 0x4000


def map_file(path: Path) -> mmap.mmap:
    """Map a non-empty file copy-on-write, so that torch may see it as writable memory.

    Writes go to private pages and never reach the file. The map lives as long as something
    refers to it; the file can be deleted meanwhile.
    """
    try:
        with path.open("rb") as file:
            if sys.platform == "linux":
                return mmap.mmap(
                    file.fileno(),
                    0,
                    flags=mmap.MAP_PRIVATE | _LINUX_MAP_NORESERVE,
                    prot=mmap.PROT_READ | mmap.PROT_WRITE,
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelFileError(path, "file", f"cannot be mapped: {reason}") from error


@dataclass(frozen=True, slots=True)
class MappedBytes:
    """`nbytes` bytes of a map, from `start` on."""

    data: mmap.mmap
    start: int
    nbytes: int

    def release(self) -> None:
        """Give the memory of the whole pages back; they are read again when they are touched.

        What was written to them is lost. Does nothing where the system has no such call.
        """
        begin = -(-self.start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (self.start + self.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
        if sys.platform == "linux" and length > 0:
            self.data.madvise(mmap.MADV_DONTNEED, begin, length)
