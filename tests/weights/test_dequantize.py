"""Dequantised values are those of `gguf.quants`, bit for bit, for any bits in the blocks."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from luce_core.errors import ConfigError
from luce_core.weights.quant import dequantize as dequantize_module
from luce_core.weights.quant_types import (
    DEQUANTIZERS,
    QUANT_TYPES,
    QUANTIZABLE,
    QuantType,
    dequantize,
    quantize,
)

# Where the fp16 scales lie, in bytes from the start of a block.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "IQ4_NL": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ1_S": (0,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,),
    "IQ4_XS": (0,), "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip
# Those that gguf reads too; test_rocmfp.py has the others.
IN_GGUF = {kind.name for kind in gguf.GGMLQuantizationType}
WITH_BLOCKS = [n for n in DEQUANTIZERS if QUANT_TYPES[n].is_quantised and n in IN_GGUF]
WITHOUT_BLOCKS = {
    "F32": np.float32, "F64": np.float64, "F16": np.float16, "I8": np.int8, "I16": np.int16,
    "I32": np.int32, "I64": np.int64,
}  # fmt: skip


def random_bytes(kind: QuantType, rows: int, blocks: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (rows, blocks * kind.block_bytes), dtype=np.uint8)


def with_sane_halves(raw: np.ndarray, kind: QuantType) -> np.ndarray:
    cells = raw.reshape(-1, kind.block_bytes).copy()
    for at in HALVES.get(kind.name, ()):
        scales = np.linspace(-2, 2, len(cells), dtype=np.float16)
        cells[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return cells.reshape(raw.shape)


def assert_same_bits(ours: torch.Tensor, theirs: np.ndarray) -> None:
    """Equal bits, or both NaN: the payload of a NaN is not part of the format."""
    mine = ours.numpy()
    assert mine.dtype == np.float32
    assert mine.shape == theirs.shape
    same = mine.view(np.uint32) == theirs.view(np.uint32)
    assert (same | (np.isnan(mine) & np.isnan(theirs))).all()


def oracle(raw: np.ndarray, kind: QuantType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(kind.ggml_id))


@pytest.mark.parametrize("name", WITH_BLOCKS)
@pytest.mark.parametrize("scales", ["sane", "hostile"])
def test_random_blocks_dequantize_as_gguf_does(name: str, scales: str) -> None:
    kind = QUANT_TYPES[name]
    raw = random_bytes(kind, rows=37, blocks=11)
    if scales == "sane":
        raw = with_sane_halves(raw, kind)
    assert_same_bits(dequantize(torch.from_numpy(raw), kind), oracle(raw, kind))


@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_one_block_alone_is_as_among_others(name: str) -> None:
    kind = QUANT_TYPES[name]
    raw = torch.from_numpy(with_sane_halves(random_bytes(kind, 3, 1), kind))
    whole = dequantize(raw, kind)
    for row in range(3):
        alone = dequantize(raw[row], kind)
        assert_same_bits(alone, whole[row].numpy())


@pytest.mark.parametrize("name", [name for name in WITH_BLOCKS if name in HALVES])
def test_infinite_and_nan_scales_dequantize_as_gguf_does(name: str) -> None:
    kind = QUANT_TYPES[name]
    raw = random_bytes(kind, rows=8, blocks=4)
    cells = raw.reshape(-1, kind.block_bytes)
    for index, scale in enumerate([np.inf, -np.inf, np.nan, 6e-8, -0.0, 65504]):
        for at in HALVES[name]:
            cells[index::6, at : at + 2] = np.float16([scale]).view(np.uint8)
    assert_same_bits(dequantize(torch.from_numpy(raw), kind), oracle(raw, kind))


def test_every_mxfp4_scale_and_code_dequantizes_as_gguf_does() -> None:
    kind = QUANT_TYPES["MXFP4"]
    codes = np.arange(16, dtype=np.uint8)
    raw = np.concatenate(
        [np.arange(256, dtype=np.uint8)[:, None], np.tile(codes | codes[::-1] << 4, (256, 1))],
        axis=1,
    )
    assert_same_bits(dequantize(torch.from_numpy(raw), kind), oracle(raw, kind))


def test_bf16_keeps_every_bit_pattern() -> None:
    raw = np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(256, 512)
    bits = dequantize(torch.from_numpy(raw), "BF16").numpy().view(np.uint32)
    assert (bits == np.arange(65536, dtype=np.uint32).reshape(256, 256) << 16).all()


@pytest.mark.parametrize("name", WITHOUT_BLOCKS)
def test_plain_types_are_the_numbers_they_store(name: str) -> None:
    stored = np.array([[0, 1, 2, 100], [7, 5, 3, 1]], WITHOUT_BLOCKS[name])
    values = dequantize(torch.from_numpy(stored.view(np.uint8)), name)
    assert values.tolist() == stored.tolist()


def test_leading_dimensions_and_strided_blocks_are_kept() -> None:
    kind = QUANT_TYPES["Q8_0"]
    raw = torch.from_numpy(with_sane_halves(random_bytes(kind, 12, 4), kind)).view(3, 4, -1)
    whole = dequantize(raw, kind)
    assert whole.shape == (3, 4, 128)
    assert torch.equal(dequantize(raw[:, 1], kind), whole[:, 1])
    assert torch.equal(dequantize(raw[..., 34:68], kind), whole[..., 32:64])
    assert dequantize(raw[:0], kind).shape == (0, 4, 128)


def test_large_tensors_in_slices_equal_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = QUANT_TYPES["Q4_K"]
    raw = torch.from_numpy(with_sane_halves(random_bytes(kind, 9, 5), kind))
    whole = dequantize(raw, kind)
    monkeypatch.setattr(dequantize_module, "_CPU_SLICE_VALUES", 7 * 256)
    assert torch.equal(dequantize(raw, kind), whole)


@pytest.mark.parametrize("name", [name for name in QUANTIZABLE if name in IN_GGUF])
def test_quantize_writes_what_gguf_writes(name: str) -> None:
    kind = QUANT_TYPES[name]
    values = np.random.default_rng(3).standard_normal((5, 512), dtype=np.float32) * 9
    blocks = quantize(torch.from_numpy(values), name)
    assert blocks.shape == (5, kind.row_bytes(512))
    if name == "I32":
        assert torch.equal(dequantize(blocks, name), torch.from_numpy(values).int().float())
        return
    theirs = gguf.quants.quantize(values, gguf.GGMLQuantizationType(kind.ggml_id)).view(np.uint8)
    assert (blocks.numpy() == theirs).all()


def test_types_that_cannot_be_converted_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"cannot quantize to Q4_K: known types are F32, .*Q8_0"):
        quantize(torch.zeros(1, 256), "Q4_K")
    with pytest.raises(ConfigError, match=r"cannot dequantize Q8_K: known types are F32, .*Q6_K"):
        dequantize(torch.zeros(1, 292, dtype=torch.uint8), "Q8_K")


def test_table_lists_the_sizes_that_gguf_lists() -> None:
    theirs = {
        kind.name: (int(kind), *sizes) for kind, sizes in gguf.constants.GGML_QUANT_SIZES.items()
    }
    ours = {
        kind.name: (kind.ggml_id, kind.block_values, kind.block_bytes)
        for kind in QUANT_TYPES.values()
        if not kind.name.startswith("ROCMFP")
    }
    assert ours == theirs
