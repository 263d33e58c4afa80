"""The block layouts that a GGUF file may name. No torch here: the file check reads it too.

Names, ids and sizes are those of ggml (`enum ggml_type` and its type traits); the ROCmFP types are
those of the ROCmFPX fork of llama.cpp (`ggml/rocmfp4/rocmfp4.h`, `ggml/rocmfpx/rocmfpx.h`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from luce_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class QuantType:
    """How a row is stored: blocks of `block_values` values in `block_bytes` bytes."""

    name: str
    ggml_id: int
    block_values: int
    block_bytes: int

    @property
    def is_quantised(self) -> bool:
        return self.block_values > 1

    def row_bytes(self, values: int) -> int:
        """Bytes of a row of `values` values, which must be whole blocks."""
        assert values % self.block_values == 0, (self.name, values)
        return values // self.block_values * self.block_bytes

    def __str__(self) -> str:
        return self.name


_ROWS = (
    QuantType("F32", 0, 1, 4),
    QuantType("F16", 1, 1, 2),
    QuantType("Q4_0", 2, 32, 18),
    QuantType("Q4_1", 3, 32, 20),
    QuantType("Q5_0", 6, 32, 22),
    QuantType("Q5_1", 7, 32, 24),
    QuantType("Q8_0", 8, 32, 34),
    QuantType("Q8_1", 9, 32, 40),
    QuantType("Q2_K", 10, 256, 84),
    QuantType("Q3_K", 11, 256, 110),
    QuantType("Q4_K", 12, 256, 144),
    QuantType("Q5_K", 13, 256, 176),
    QuantType("Q6_K", 14, 256, 210),
    QuantType("Q8_K", 15, 256, 292),
    QuantType("IQ2_XXS", 16, 256, 66),
    QuantType("IQ2_XS", 17, 256, 74),
    QuantType("IQ3_XXS", 18, 256, 98),
    QuantType("IQ1_S", 19, 256, 50),
    QuantType("IQ4_NL", 20, 32, 18),
    QuantType("IQ3_S", 21, 256, 110),
    QuantType("IQ2_S", 22, 256, 82),
    QuantType("IQ4_XS", 23, 256, 136),
    QuantType("I8", 24, 1, 1),
    QuantType("I16", 25, 1, 2),
    QuantType("I32", 26, 1, 4),
    QuantType("I64", 27, 1, 8),
    QuantType("F64", 28, 1, 8),
    QuantType("IQ1_M", 29, 256, 56),
    QuantType("BF16", 30, 1, 2),
    QuantType("TQ1_0", 34, 256, 54),
    QuantType("TQ2_0", 35, 256, 66),
    QuantType("MXFP4", 39, 32, 17),
    QuantType("NVFP4", 40, 64, 36),
    QuantType("Q1_0", 41, 128, 18),
    QuantType("ROCMFP4", 100, 32, 18),
    QuantType("ROCMFP4_FAST", 101, 32, 17),
    QuantType("ROCMFP6", 102, 32, 26),
    QuantType("ROCMFP8", 103, 32, 33),
    QuantType("ROCMFP3", 104, 32, 14),
    QuantType("ROCMFP2", 107, 32, 10),
)

QUANT_TYPES: Mapping[str, QuantType] = MappingProxyType({row.name: row for row in _ROWS})
QUANT_TYPES_BY_ID: Mapping[int, QuantType] = MappingProxyType({row.ggml_id: row for row in _ROWS})


def quant_type(named: QuantType | str) -> QuantType:
    """A type by its ggml name, upper case; ConfigError lists the names."""
    if isinstance(named, QuantType):
        return named
    if named not in QUANT_TYPES:
        raise ConfigError(f"no quant type {named!r}: known are {', '.join(QUANT_TYPES)}")
    return QUANT_TYPES[named]


# Ids that ggml has given up: files that hold them are complete, but nothing reads them any more.
REMOVED_TYPES: Mapping[int, str] = MappingProxyType(
    {
        4: "Q4_2",
        5: "Q4_3",
        31: "Q4_0_4_4",
        32: "Q4_0_4_8",
        33: "Q4_0_8_8",
        36: "IQ4_NL_4_4",
        37: "IQ4_NL_4_8",
        38: "IQ4_NL_8_8",
    }
)
