"""A weight as the model file holds it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from luce_core.weights.mapped_file import MappedBytes
from luce_core.weights.quant.dequantize import dequantize
from luce_core.weights.quant.quantize import quantize
from luce_core.weights.quant.table import QuantType, quant_type


@dataclass(frozen=True, slots=True, eq=False)
class QuantTensor:
    """A tensor in its quant blocks.

    `shape` is in torch order (a matrix is `[N, K]`, K values lie in a row); `blocks` is uint8
    `[..., row_bytes]` with the same leading dimensions. Blocks of a file's tensors are mapped:
    they cost no memory until they are read, and writing to them never reaches the file. `mapped`
    says where, None for blocks in memory.
    """

    name: str
    qtype: QuantType
    shape: tuple[int, ...]
    blocks: Tensor
    mapped: MappedBytes | None = None

    def __post_init__(self) -> None:
        row_bytes = self.qtype.row_bytes(self.shape[-1])
        assert self.blocks.shape == (*self.shape[:-1], row_bytes), (self.name, self.blocks.shape)

    @classmethod
    def from_values(cls, name: str, values: Tensor, qtype: QuantType | str) -> QuantTensor:
        """Quantise `values`; ConfigError for a type that cannot be written."""
        kind = quant_type(qtype)
        return cls(name, kind, tuple(values.shape), quantize(values, kind))

    @property
    def nbytes(self) -> int:
        return self.blocks.numel()

    def release_pages(self) -> None:
        """The blocks will hardly be read again: a mapped tensor's memory goes back to the system.

        Reading them is still right, and what was written to them is lost.
        """
        if self.mapped is not None:
            self.mapped.release()

    def dequantize(self) -> Tensor:
        """The values, float32, of `shape`."""
        return dequantize(self.blocks, self.qtype)
