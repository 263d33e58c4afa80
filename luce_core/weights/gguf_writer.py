"""Writes GGUF version 3 files tensor by tensor, so that a file may be larger than memory."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from luce_core.errors import ConfigError
from luce_core.weights.gguf_check import DEFAULT_ALIGNMENT, MAGIC
from luce_core.weights.header_values import ARRAY, BOOL, SCALARS, STRING
from luce_core.weights.quant.table import QUANT_TYPES, QuantType
from luce_core.weights.quant.tensor import QuantTensor

_VERSION = 3
_INTEGER_TYPES = (np.uint32, np.int32, np.uint64, np.int64)
_LIST_TYPES = (np.int32, *_INTEGER_TYPES)  # as the gguf package does; llama.cpp insists at times
_PLAIN_TYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
}
_VALUE_TYPES = {np.dtype(layout.format): kind for kind, layout in SCALARS.items() if kind != BOOL}


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A tensor to write: `shape` in torch order, `chunks()` yields its bytes in order, once."""

    name: str
    qtype: QuantType
    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[bytes | memoryview]]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape[:-1], dtype=np.int64)) * self.qtype.row_bytes(self.shape[-1])


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A metadata value as a file stores it, its type first: for copies that lose nothing."""

    data: bytes


def write_gguf(
    path: Path | str,
    arch: str,
    metadata: Mapping[str, object],
    tensors: Mapping[str, Tensor | QuantTensor],
) -> Path:
    """Write a model with exactly these weights and return its path.

    A float32, float16, bfloat16 or int32 tensor is written as it is; other types come as
    QuantTensor (`QuantTensor.from_values` quantises). `general.architecture` is `arch`.
    """
    sources = [_source(name, tensor) for name, tensor in tensors.items()]
    return write_file(path, {"general.architecture": arch, **metadata}, sources)


def write_file(
    path: Path | str,
    metadata: Mapping[str, object],
    tensors: Sequence[TensorSource],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
) -> Path:
    """Write metadata and tensors; the file appears under its name when it is complete.

    Values become the smallest of uint32, int32, uint64, int64 that holds them, float32, bool or
    string; numpy scalars and arrays keep their dtype, and a StoredValue everything.
    """
    path = Path(path)
    if alignment != DEFAULT_ALIGNMENT:
        metadata = {**metadata, "general.alignment": alignment}
    unfinished = path.with_name(path.name + ".part")
    try:
        with unfinished.open("wb") as file:
            _write(file, metadata, tensors, alignment)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _write(
    file: BinaryIO,
    metadata: Mapping[str, object],
    tensors: Sequence[TensorSource],
    alignment: int,
) -> None:
    file.write(MAGIC + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata)))
    for key, value in metadata.items():
        file.write(_string(key) + _value(key, value))
    offset = 0
    for tensor in tensors:
        dims = tensor.shape[::-1]
        file.write(_string(tensor.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
        file.write(struct.pack("<IQ", tensor.qtype.ggml_id, offset))
        offset += -(-tensor.nbytes // alignment) * alignment
    _pad(file, alignment)
    for tensor in tensors:
        start = file.tell()
        for chunk in tensor.chunks():
            file.write(chunk)
        assert file.tell() - start == tensor.nbytes, (tensor.name, file.tell() - start)
        _pad(file, alignment)


def _source(name: str, tensor: Tensor | QuantTensor) -> TensorSource:
    if isinstance(tensor, QuantTensor):
        qtype, shape, data = tensor.qtype, tensor.shape, tensor.blocks
    elif tensor.dtype in _PLAIN_TYPES:
        qtype, shape, data = QUANT_TYPES[_PLAIN_TYPES[tensor.dtype]], tuple(tensor.shape), tensor
    else:
        known = ", ".join(str(dtype) for dtype in _PLAIN_TYPES)
        raise ConfigError(f"cannot write {name!r} of {tensor.dtype}: known types are {known}")
    raw = data.detach().cpu().contiguous().view(torch.uint8).numpy()
    return TensorSource(name, qtype, shape, lambda: [raw.data])


def _pad(file: BinaryIO, alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(key: str, value: object) -> bytes:
    if isinstance(value, StoredValue):
        return value.data
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, list | tuple | np.ndarray):
        return struct.pack("<I", ARRAY) + _array(key, value)
    kind, raw = _numbers(key, np.asarray([value]) if isinstance(value, np.generic) else [value])
    return struct.pack("<I", kind) + raw


def _array(key: str, values: Sequence[object] | np.ndarray) -> bytes:
    if not isinstance(values, np.ndarray) and all(isinstance(each, str) for each in values):
        head = struct.pack("<IQ", STRING, len(values))
        return head + b"".join(_string(str(each)) for each in values)
    kind, raw = _numbers(key, values, _LIST_TYPES)
    return struct.pack("<IQ", kind, len(values)) + raw


def _numbers(
    key: str, values: Sequence[object] | np.ndarray, integers: Sequence[type] = _INTEGER_TYPES
) -> tuple[int, bytes]:
    """Value type and bytes of numbers that share one type, of `integers` the first that fits."""
    array = values if isinstance(values, np.ndarray) else _fitted(key, values, integers)
    if array.dtype == np.bool_:
        return BOOL, array.tobytes()
    array = array.astype(array.dtype.newbyteorder("<"))
    if array.dtype not in _VALUE_TYPES:
        raise ConfigError(f"cannot write metadata {key!r} of dtype {array.dtype}")
    return _VALUE_TYPES[array.dtype], array.tobytes()


def _fitted(key: str, values: Sequence[object], integers: Sequence[type]) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    if array.dtype.kind in "iu":
        for dtype in integers:
            limits = np.iinfo(dtype)
            if limits.min <= array.min() and array.max() <= limits.max:
                return array.astype(dtype)
    raise ConfigError(f"cannot write metadata {key!r}: {values!r:.80}")
