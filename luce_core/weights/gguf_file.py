"""A model file, checked and mapped: metadata to read, tensors in their quant blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from mmap import mmap
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np
import torch

from luce_core.errors import ModelFileError
from luce_core.weights.gguf_check import GgufHeader, TensorEntry, read_header
from luce_core.weights.mapped_file import MappedBytes, map_file
from luce_core.weights.model_role import Role, check_role
from luce_core.weights.quant.tensor import QuantTensor
from luce_core.weights.split_files import single_model, whole_set
from luce_core.weights.typed_metadata import TypedMetadata


class GgufFile:
    """One model, from one file or from all files of a split set.

    `tensors` are mapped, in the file's order; a tensor that somebody holds keeps its map alive
    after `close`. `metadata` is that of the first file.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        metadata: TypedMetadata,
        tensors: Mapping[str, QuantTensor],
    ) -> None:
        self.paths = tuple(paths)
        self.metadata = metadata
        self._tensors = dict(tensors)
        self.total_bytes = sum(tensor.nbytes for tensor in self._tensors.values())

    @classmethod
    def open(cls, path: Path | str, *, role: Role = "model") -> GgufFile:
        """Open a file, any file of a split set, or a folder that holds one model.

        `role` says what the file was given as: a file that is something else is refused with the
        name of what it is (`any` takes every valid GGUF). Raises ModelFileError.
        """
        named = Path(path)
        if named.is_dir():
            named = single_model(named)
        maps: dict[Path, mmap] = {}

        def read(each: Path) -> GgufHeader:
            maps[each] = _map_model(each)
            return read_header(each, maps[each])

        shards = whole_set(named, read(named), read)
        metadata = TypedMetadata(shards[0][0], shards[0][1].metadata)
        tensor_count = sum(len(header.tensors) for _, header in shards)
        check_role(shards[0][0], metadata, tensor_count, role)
        tensors: dict[str, QuantTensor] = {}
        for each, header in shards:
            tensors.update(_tensors(maps[each], header.tensors))
        return cls((each for each, _ in shards), metadata, tensors)

    @property
    def path(self) -> Path:
        """The first file."""
        return self.paths[0]

    @property
    def architecture(self) -> str:
        return self.metadata.str("general.architecture")

    @property
    def tensors(self) -> Mapping[str, QuantTensor]:
        """By name; empty after `close`."""
        return MappingProxyType(self._tensors)

    def release_pages(self) -> None:
        """Once the weights are prepared: give the memory of all maps back, borders and header too.

        Tensors stay right; what was written to them is lost.
        """
        for data in {tensor.mapped.data for tensor in self._tensors.values() if tensor.mapped}:
            MappedBytes(data, 0, len(data)).release()

    def close(self) -> None:
        """Let go of the maps. Idempotent."""
        self._tensors.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _map_model(path: Path) -> mmap:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ModelFileError(
            path, "file", f"cannot be opened: {error.strerror or error}"
        ) from error
    if not path.is_file():
        raise ModelFileError(path, "file", "must be a regular file")
    if size == 0:
        raise ModelFileError(path, "file type", "this file is empty: download it again")
    return map_file(path)


def _tensors(data: mmap, entries: Iterable[TensorEntry]) -> Iterable[tuple[str, QuantTensor]]:
    whole = np.frombuffer(data, np.uint8)
    for entry in entries:
        blocks = torch.from_numpy(whole[entry.start : entry.start + entry.nbytes])
        rows = blocks.view(*entry.shape[:-1], -1)
        mapped = MappedBytes(data, entry.start, entry.nbytes)
        yield entry.name, QuantTensor(entry.name, entry.qtype, entry.shape, rows, mapped)
