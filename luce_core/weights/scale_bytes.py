"""Scale bytes that are no number: such a block means nothing, and the file is refused."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch

from luce_core.errors import ModelFileError
from luce_core.weights.quant.rocmfp import GREATEST_SCALE_BYTE
from luce_core.weights.quant.tensor import QuantTensor

_CHUNK_BLOCKS = 1 << 22


class _ScaleBytes(NamedTuple):
    """Bytes `first` to `last` of a block; values above `greatest` are invalid."""

    first: int
    last: int
    greatest: int


# MXFP4's exponents are e8m0 of the OCP microscaling formats, whose last code is no number.
_SCALES: Mapping[str, _ScaleBytes] = MappingProxyType(
    {
        "MXFP4": _ScaleBytes(0, 0, 0xFE),
        "ROCMFP2": _ScaleBytes(8, 9, GREATEST_SCALE_BYTE),
        "ROCMFP3": _ScaleBytes(12, 13, GREATEST_SCALE_BYTE),
        "ROCMFP4": _ScaleBytes(16, 17, GREATEST_SCALE_BYTE),
        "ROCMFP4_FAST": _ScaleBytes(16, 16, GREATEST_SCALE_BYTE),
        "ROCMFP6": _ScaleBytes(24, 25, GREATEST_SCALE_BYTE),
        "ROCMFP8": _ScaleBytes(32, 32, GREATEST_SCALE_BYTE),
    }
)


def refuse_invalid_scales(path: object, tensor: QuantTensor) -> None:
    """ModelFileError naming tensor, block and byte for the first scale that is no number.

    Reads the scale bytes of types that have such codes, and nothing of any other.
    """
    where = _SCALES.get(tensor.qtype.name)
    if where is None:
        return
    blocks = tensor.blocks.view(-1, tensor.qtype.block_bytes)
    for at in range(where.first, where.last + 1):
        for start in range(0, blocks.shape[0], _CHUNK_BLOCKS):
            column = blocks[start : start + _CHUNK_BLOCKS, at]
            if int(column.max()) <= where.greatest:
                continue
            block = start + int(torch.nonzero(column > where.greatest)[0, 0])
            row_blocks = tensor.shape[-1] // tensor.qtype.block_values
            raise ModelFileError(
                path,
                f"tensor {tensor.name!r}",
                f"byte {at} of block {block} (row {block // row_blocks}) is "
                f"0x{int(blocks[block, at]):02x}, which is no {tensor.qtype} scale: 0x00 to "
                f"0x{where.greatest:02x} are; the file is damaged or of a variant that is not read",
            )
