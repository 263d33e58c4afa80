"""Random but valid quant blocks whose values have a wanted standard deviation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch

from luce_core.errors import ConfigError
from luce_core.weights.quant.dequantize import dequantize
from luce_core.weights.quant.rocmfp_encode import ROCMFP_TYPES, encode
from luce_core.weights.quant.table import QuantType

Bytes = npt.NDArray[np.uint8]

# Per type: where the fp16 scale d lies, and where the minimum lies and how many d it is, so that
# the mean of the values is zero when the other bits are random.
_SCALES: Mapping[str, tuple[int, int | None, float]] = MappingProxyType(
    {
        "Q4_0": (0, None, 0),
        "Q4_1": (0, 2, -7.5),
        "Q5_0": (0, None, 0),
        "Q5_1": (0, 2, -15.5),
        "Q8_0": (0, None, 0),
        "Q2_K": (80, 82, 1.5),
        "Q3_K": (108, None, 0),
        "Q4_K": (0, 2, 7.5),
        "Q5_K": (0, 2, 15.5),
        "Q6_K": (208, None, 0),
        "IQ1_S": (0, None, 0),
        "IQ2_XXS": (0, None, 0),
        "IQ2_XS": (0, None, 0),
        "IQ2_S": (0, None, 0),
        "IQ3_XXS": (0, None, 0),
        "IQ3_S": (0, None, 0),
        "IQ4_NL": (0, None, 0),
        "IQ4_XS": (0, None, 0),
        "TQ1_0": (52, None, 0),
        "TQ2_0": (64, None, 0),
    }
)
# Types whose code range is lopsided and whose d quantisers write with either sign.
_SIGNED = ("Q4_0", "Q5_0", "IQ4_NL")
_PLAIN = ("F32", "F16", "BF16")
SYNTHETIC_TYPES = (*_PLAIN, *_SCALES, "IQ1_M", "MXFP4", *ROCMFP_TYPES)
_CHUNK_VALUES = 1 << 22
_SAMPLE_BLOCKS = 512


def random_chunks(
    kind: QuantType, values: int, std: float, mean: float, rng: np.random.Generator
) -> Iterator[memoryview]:
    """The bytes of `values` values, chunk by chunk; `mean` is for types without blocks only."""
    if kind.name not in SYNTHETIC_TYPES:
        raise ConfigError(f"no random {kind}: known types are {', '.join(SYNTHETIC_TYPES)}")
    if kind.name in ROCMFP_TYPES:
        yield from _encoded(kind, values, std, rng)
        return
    scale = 0.0 if kind.name in _PLAIN else std / _unit_std(kind)
    for start in range(0, values, _CHUNK_VALUES):
        count = min(_CHUNK_VALUES, values - start)
        if kind.name in _PLAIN:
            yield _plain(kind, rng.standard_normal(count, np.float32) * std + mean)
        else:
            yield _blocks(kind, count // kind.block_values, scale, rng).reshape(-1).data


def _plain(kind: QuantType, values: npt.NDArray[np.float32]) -> memoryview:
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind.name]
    raw: Bytes = torch.from_numpy(values).to(dtype).view(torch.uint8).numpy()
    return raw.data


def _encoded(
    kind: QuantType, values: int, std: float, rng: np.random.Generator
) -> Iterator[memoryview]:
    """Normal numbers in a type whose scales do not reach far: random codes would be too large.

    Rounding changes the spread, and with lopsided levels the mean: both are made up for.
    """
    sample = np.random.default_rng(0).standard_normal((1 << 10, kind.block_values), np.float32)
    made = dequantize(encode(torch.from_numpy(sample * std), kind.name), kind).double()
    gain = std / float(made.std())
    spread, shift = np.float32(std * gain), np.float32(float(made.mean()) * gain)
    for start in range(0, values, _CHUNK_VALUES):
        count = min(_CHUNK_VALUES, values - start) // kind.block_values
        drawn = rng.standard_normal((count, kind.block_values), np.float32) * spread - shift
        raw: Bytes = encode(torch.from_numpy(drawn), kind.name).numpy()
        yield raw.reshape(-1).data


def _unit_std(kind: QuantType) -> float:
    """Standard deviation of random blocks of scale 1, measured on a sample."""
    sample = _blocks(kind, _SAMPLE_BLOCKS, 1.0, np.random.default_rng(0))
    return float(dequantize(torch.from_numpy(sample), kind).double().std())


def _blocks(kind: QuantType, count: int, scale: float, rng: np.random.Generator) -> Bytes:
    """`[count, block_bytes]`: random bits under scales around `scale`, different in each block."""
    raw = np.frombuffer(rng.bytes(count * kind.block_bytes), np.uint8).copy()
    cells = raw.reshape(count, kind.block_bytes)
    if kind.name == "MXFP4":
        cells[:, 0] = _e8m0(scale, count, rng)
        return cells
    d = (scale * rng.uniform(0.5, 1.5, count)).astype(np.float16)
    if kind.name == "IQ1_M":
        _put_nibbles(cells, d)
        return cells
    if kind.name in _SIGNED:
        d *= rng.choice(np.array([-1, 1], np.float16), count)
    at, least_at, ratio = _SCALES[kind.name]
    cells[:, at : at + 2] = d[:, None].view(np.uint8)
    if least_at is not None:
        least = (d.astype(np.float32) * ratio).astype(np.float16)
        cells[:, least_at : least_at + 2] = least[:, None].view(np.uint8)
    _drop_unused_codes(kind, cells)
    return cells


def _drop_unused_codes(kind: QuantType, cells: Bytes) -> None:
    """Kernels may rely on what quantisers never write: -128 in Q8_0, the pair 3 in TQ2_0."""
    if kind.name == "Q8_0":
        codes = cells[:, 2:]
        codes[codes == 0x80] = 0x81
    elif kind.name == "TQ2_0":
        codes = cells[:, :64]
        codes &= ~((codes >> 1 & codes & 0x55) << 1)


def _e8m0(scale: float, count: int, rng: np.random.Generator) -> Bytes:
    """Exponents of two neighbouring powers of two, mixed so that their mean square is scale^2.

    Code 128 is scale 1 (see `float4.mxfp4`).
    """
    upper = math.ceil(math.log2(scale))
    share = ((scale / 2.0**upper) ** 2 - 0.25) / 0.75
    codes = 128 + upper - (rng.random(count) >= share)
    exponents: Bytes = np.clip(codes, 0, 254).astype(np.uint8)
    return exponents


def _put_nibbles(cells: Bytes, d: npt.NDArray[np.float16]) -> None:
    """IQ1_M keeps d in the top nibbles of its four 16-bit scale words."""
    bits = d.view(np.uint16)
    for word in range(4):
        nibble = ((bits >> (4 * word)) & 15).astype(np.uint8)
        at = 49 + 2 * word
        cells[:, at] = (cells[:, at] & 0x0F) | (nibble << 4)
