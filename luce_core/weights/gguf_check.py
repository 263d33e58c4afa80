"""The one pass over a GGUF header: everything in it is checked before anything is used.

The `gguf` package's reader is not used for files: it has no bounds checks, and makes several numpy
arrays for every string of a vocabulary, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path

from luce_core.weights.file_kind import refuse_other_kinds
from luce_core.weights.header_bytes import HeaderBytes
from luce_core.weights.header_values import read_value
from luce_core.weights.quant.table import QUANT_TYPES_BY_ID, REMOVED_TYPES, QuantType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_NAME_BYTES = 1 << 10
MAX_DIMS = 4


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor's place in the file: `nbytes` from byte `start`; `shape` in torch order."""

    name: str
    qtype: QuantType
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A header that has passed every check; all tensors lie inside the file."""

    version: int
    metadata: Mapping[str, object]
    tensors: tuple[TensorEntry, ...]
    value_bytes: Mapping[str, slice]  # of each metadata value with its type, in the file


@dataclass(frozen=True, slots=True)
class _Unplaced:
    """A tensor entry before the start of the data section is known."""

    name: str
    qtype: QuantType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_header(path: Path, data: bytes | mmap) -> GgufHeader:
    """Check the whole header of a mapped file; ModelFileError names the file and the field.

    Work is bounded by the header's size, whatever its counts claim.
    """
    refuse_other_kinds(path, data)
    source = HeaderBytes(path, data)
    source.take(len(MAGIC), "magic")
    version = _read_version(source)
    tensor_count = _read_count(source, "tensor count", MAX_TENSORS)
    key_count = _read_count(source, "metadata count", MAX_KEYS)
    metadata: dict[str, object] = {}
    value_bytes: dict[str, slice] = {}
    for index in range(key_count):
        key = _read_name(source, f"metadata key {index}")
        if key in metadata:
            raise source.fault(key, "this metadata key occurs twice")
        start = source.position
        metadata[key] = read_value(source, key)
        value_bytes[key] = slice(start, source.position)
    alignment = _read_alignment(source, metadata)
    unplaced = [_read_entry(source, index, alignment) for index in range(tensor_count)]
    data_start = -(-source.position // alignment) * alignment
    return GgufHeader(version, metadata, _place(source, unplaced, data_start), value_bytes)


def _read_version(source: HeaderBytes) -> int:
    version = source.u32("version")
    if version & 0xFFFF == 0 and version:
        raise source.fault(
            "version", "this is a big-endian GGUF file; only little-endian ones are accepted"
        )
    if version not in VERSIONS:
        raise source.fault("version", f"must be 2 or 3, got {version}")
    return version


def _read_count(source: HeaderBytes, field: str, most: int) -> int:
    count = source.u64(field)
    if count > most:
        raise source.fault(field, f"{count}; at most {most} are accepted")
    return count


def _read_name(source: HeaderBytes, field: str) -> str:
    """A key or tensor name: it will stand in messages, so it must be one line of text."""
    name = source.string(field, MAX_NAME_BYTES)
    if not name.isprintable() or not name:
        raise source.fault(field, f"must be printable text, got {name!r:.80}")
    return name


def _read_alignment(source: HeaderBytes, metadata: Mapping[str, object]) -> int:
    key = "general.alignment"
    value = metadata.get(key, DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool):
        raise source.fault(key, f"must be an integer, got {value!r:.80}")
    if not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        raise source.fault(key, f"must be a power of two up to {MAX_ALIGNMENT}, got {value}")
    return value


def _read_entry(source: HeaderBytes, index: int, alignment: int) -> _Unplaced:
    name = _read_name(source, f"name of tensor {index}")
    field = f"tensor {name!r}"
    n_dims = source.u32(f"{field} dimension count")
    if not 1 <= n_dims <= MAX_DIMS:
        raise source.fault(field, f"has {n_dims} dimensions; 1 to {MAX_DIMS} are accepted")
    dims = [source.u64(f"{field} dimension {d}") for d in range(n_dims)]
    qtype = _read_type(source, field)
    offset = source.u64(f"{field} offset")
    if offset % alignment:
        raise source.fault(field, f"offset {offset} is not a multiple of alignment {alignment}")
    rows = 1
    for size in dims[1:]:
        rows *= size
    if 0 in dims or dims[0] * rows >= 1 << 62:
        raise source.fault(field, f"dimensions {dims} must be at least 1 and below 2^62 in all")
    if dims[0] % qtype.block_values:
        raise source.fault(
            field,
            f"rows of {dims[0]} values are not whole {qtype} blocks of {qtype.block_values}",
        )
    # The file lists the row length first, torch last.
    shape = tuple(reversed(dims))
    return _Unplaced(name, qtype, shape, offset, rows * qtype.row_bytes(dims[0]))


def _read_type(source: HeaderBytes, field: str) -> QuantType:
    ggml_id = source.u32(f"{field} type")
    qtype = QUANT_TYPES_BY_ID.get(ggml_id)
    if qtype is not None:
        return qtype
    if ggml_id in REMOVED_TYPES:
        raise source.fault(
            field, f"has type {REMOVED_TYPES[ggml_id]}, which ggml has removed: quantise again"
        )
    known = ", ".join(str(kind) for kind in QUANT_TYPES_BY_ID.values())
    raise source.fault(field, f"has unknown ggml type {ggml_id}; known are {known}")


def _place(
    source: HeaderBytes, unplaced: Sequence[_Unplaced], data_start: int
) -> tuple[TensorEntry, ...]:
    """Turn offsets into file positions: inside the file, no name twice, no byte owned twice."""
    seen: set[str] = set()
    for entry in unplaced:
        if entry.name in seen:
            raise source.fault(f"tensor {entry.name!r}", "this tensor name occurs twice")
        seen.add(entry.name)
    previous: _Unplaced | None = None
    for entry in sorted(unplaced, key=lambda each: each.offset):
        if previous is not None and entry.offset < previous.offset + previous.nbytes:
            raise source.fault(
                f"tensor {entry.name!r}", f"overlaps tensor {previous.name!r} in the file"
            )
        previous = entry
    if previous is not None:
        wanted = data_start + previous.offset + previous.nbytes
        if wanted > source.file_bytes:
            raise source.fault(
                f"tensor {previous.name!r}",
                f"ends at byte {wanted}, but the file ends at byte {source.file_bytes} "
                f"({source.file_bytes / wanted:.0%} of it is here): it is cut off",
            )
    return tuple(
        TensorEntry(each.name, each.qtype, each.shape, data_start + each.offset, each.nbytes)
        for each in unplaced
    )
