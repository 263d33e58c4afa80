"""The table that `luce tune` writes: tiles measured on a device, by kernel and layer.

`configs.py` looks into it when a layer makes its launches; what it does not hold is computed as
without a table. A tile never depends on how many rows a step has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from luce_core.errors import ConfigError

FORMAT = 1
# Of the kernels whose tiles are tabled: with other kernels other tiles are the best.
KERNELS_VERSION = 1
MOST_BYTES = 1 << 20
# The most that a tile can hold on any GPU; a table with more is not one of ours.
_MOST = 1024


@dataclass(frozen=True, slots=True)
class TileKey:
    """A kernel with the facts that its tile depends on: (qtype, n, k) or (group, head_dim)."""

    kernel: str
    facts: tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Sizes of a tile. `rows` and `columns` are of the output, `depth` is what is summed at once:
    groups of a plane in products, keys in attention."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int = 1


_SIZES = tuple(Tile.__dataclass_fields__)


class Tiles:
    """What has been read into this process."""

    def __init__(self) -> None:
        self._found: dict[TileKey, Tile] = {}

    def find(self, kernel: str, *facts: str | int) -> Tile | None:
        return self._found.get(TileKey(kernel, facts))

    def read(self, path: Path, arch: str) -> None:
        """ConfigError if it is no table, of another device or of other kernels."""
        self._found = read_table(path, arch)

    @contextmanager
    def trial(self, key: TileKey, tile: Tile) -> Iterator[None]:
        """A tile for as long as it is measured."""
        before = self._found
        self._found = {**before, key: tile}
        try:
            yield
        finally:
            self._found = before


@cache
def tiles() -> Tiles:
    """Those of the process: kernels are called without a place to keep them."""
    return Tiles()


def read_tiles(path: Path, arch: str) -> None:
    """The `read_table` of the tuned kernels."""
    tiles().read(path, arch)


def write_table(path: Path, arch: str, device: str, found: Mapping[TileKey, Tile]) -> None:
    """ConfigError if the file cannot be written."""
    entries = [
        {"kernel": key.kernel, "facts": list(key.facts), **asdict(tile)}
        for key, tile in found.items()
    ]
    table = {
        "format": FORMAT,
        "kernels": KERNELS_VERSION,
        "arch": arch,
        "device": device,
        "tiles": entries,
    }
    try:
        path.write_bytes(orjson.dumps(table, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise ConfigError(f"kernel table {path}: {error.strerror or error}") from error


def read_table(path: Path, arch: str) -> dict[TileKey, Tile]:
    """The tiles of a file for an architecture; ConfigError says what is wrong with it."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(f"kernel table {path}: larger than {MOST_BYTES} bytes")
        table = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"kernel table {path}: {error.strerror or error}") from error
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"kernel table {path}: no JSON: {error}") from error
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise ConfigError(f"kernel table {path}: not a table of format {FORMAT}")
    if table.get("kernels") != KERNELS_VERSION:
        raise ConfigError(
            f"kernel table {path}: made for version {table.get('kernels')} of the kernels, these "
            f"are version {KERNELS_VERSION}; run luce tune again"
        )
    if table.get("arch") != arch:
        raise ConfigError(
            f"kernel table {path}: measured on {table.get('arch')} ({table.get('device')}), "
            f"this device is {arch}"
        )
    entries = table.get("tiles")
    if not isinstance(entries, list):
        raise ConfigError(f"kernel table {path}: its tiles are no list")
    return dict(_entry(path, number, entry) for number, entry in enumerate(entries))


def _entry(path: Path, number: int, entry: Any) -> tuple[TileKey, Tile]:
    if isinstance(entry, dict) and entry.keys() == {"kernel", "facts", *_SIZES}:
        kernel, facts = entry["kernel"], entry["facts"]
        sizes = {name: entry[name] for name in _SIZES}
        known = isinstance(kernel, str) and isinstance(facts, list)
        if known and all(type(fact) in (str, int) for fact in facts) and _are_sizes(sizes):
            return TileKey(kernel, tuple(facts)), Tile(**sizes)
    raise ConfigError(
        f"kernel table {path}: tile {number} must have a kernel, facts, and as powers of two up to "
        f"{_MOST} {', '.join(_SIZES)}; got {entry!r}"
    )


def _are_sizes(sizes: Mapping[str, Any]) -> bool:
    """Powers of two; stages may be any small number."""
    return all(
        type(size) is int and 0 < size <= _MOST and (name == "stages" or size & (size - 1) == 0)
        for name, size in sizes.items()
    )
