"""Writes the planned file: one tensor in memory at a time, its rows shared among threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import gguf
import torch
from torch import Tensor

from luce_core.errors import ConfigError, ModelFileError
from luce_core.quantize.plan import Choice
from luce_core.weights.gguf_check import read_header
from luce_core.weights.gguf_writer import StoredValue, TensorSource, write_file
from luce_core.weights.mapped_file import map_file
from luce_core.weights.quant_types import QuantType, dequantize, quantize
from luce_core.weights.scale_bytes import refuse_invalid_scales

QUANTIZATION_VERSION = 2  # ggml's
_FILE_TYPE, _VERSION = "general.file_type", "general.quantization_version"
_PIECE_VALUES = 1 << 20

# Bytes written, and the tensor that they belong to.
Written = Callable[[int, str], None]


def convert(
    source: Path,
    choices: Sequence[Choice],
    main: QuantType,
    target: Path,
    written: Written,
    threads: int,
) -> None:
    """Write the tensors in their chosen types and the metadata of the first file of `source`.

    `target` appears when it is complete. Raises ModelFileError for values that are no numbers and
    for scales that mean nothing, ConfigError where the disk refuses.
    """
    usual_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # pieces are shared among threads, not the operations on a piece
    try:
        with ThreadPoolExecutor(threads) as pool:
            sources = [
                TensorSource(
                    choice.tensor.name,
                    choice.qtype,
                    choice.tensor.shape,
                    partial(_chunks, source, choice, pool, written),
                )
                for choice in choices
            ]
            write_file(target, copied_metadata(source, main), sources)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        torch.set_num_threads(usual_threads)


def copied_metadata(source: Path, main: QuantType) -> dict[str, object]:
    """All keys to the bit, but those of split sets and of the layout, and what says the type."""
    data = map_file(source)
    header = read_header(source, data)
    kept: dict[str, object] = {
        key: StoredValue(data[where])
        for key, where in header.value_bytes.items()
        if not key.startswith("split.") and key not in ("general.alignment", _FILE_TYPE, _VERSION)
    }
    kept[_VERSION] = QUANTIZATION_VERSION
    number = _file_type(main)
    return kept if number is None else {**kept, _FILE_TYPE: number}


def _file_type(main: QuantType) -> int | None:
    """llama.cpp's number for files of mostly this type; None where it has none."""
    named = {
        kind.name.removeprefix("MOSTLY_").removeprefix("ALL_").removesuffix("_MOE"): int(kind)
        for kind in gguf.LlamaFileType
    }
    return named.get(main.name)


def _chunks(
    path: Path, choice: Choice, pool: ThreadPoolExecutor, written: Written
) -> Iterator[memoryview]:
    tensor = choice.tensor
    refuse_invalid_scales(path, tensor)
    rows = tensor.blocks.view(-1, tensor.blocks.shape[-1])
    step = max(1, _PIECE_VALUES // tensor.shape[-1])
    pieces = [rows[at : at + step] for at in range(0, len(rows), step)]
    made = pool.map(partial(_converted, path, choice), pieces) if choice.changes else iter(pieces)
    for piece in made:
        raw = piece.contiguous().numpy().reshape(-1)
        yield raw.data
        written(raw.nbytes, tensor.name)
    tensor.release_pages()


def _converted(path: Path, choice: Choice, blocks: Tensor) -> Tensor:
    values = dequantize(blocks, choice.tensor.qtype)
    field = f"tensor {choice.tensor.name!r}"
    if not bool(torch.isfinite(values).all()):
        raise ModelFileError(path, field, "holds a value that is infinite or no number")
    try:
        return quantize(values, choice.qtype)
    except ConfigError as error:
        raise ModelFileError(path, field, str(error)) from error
