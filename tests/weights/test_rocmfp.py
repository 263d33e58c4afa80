"""ROCmFP blocks mean what their layout says, and what is written is as near as promised."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from luce_core.errors import ConfigError, ModelFileError
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import write_gguf
from luce_core.weights.quant_types import QUANT_TYPES, QuantTensor, dequantize, quantize
from luce_core.weights.tensor_claims import TensorClaims


class Form(NamedTuple):
    """A type as its layout is written down; `levels` are what its codes stand for."""

    ggml_id: int
    block_bytes: int
    bits: int
    group: int
    levels: tuple[int, ...]


def signed(*stops: int) -> tuple[int, ...]:
    return (*stops, *(-stop for stop in stops))


FP4 = signed(0, 1, 2, 3, 4, 6, 8, 10)
FORMS = {
    "ROCMFP2": Form(107, 10, 2, 16, (-1, 0, 1, 2)),
    "ROCMFP3": Form(104, 14, 3, 16, signed(0, 1, 2, 4)),
    "ROCMFP4": Form(100, 18, 4, 16, FP4),
    "ROCMFP4_FAST": Form(101, 17, 4, 32, FP4),
    "ROCMFP6": Form(102, 26, 6, 16, signed(*range(32))),
    "ROCMFP8": Form(103, 33, 8, 32, (*range(128), *range(-128, 0))),
}
TYPES = tuple(FORMS)
LAST = 0x7E


def scale(byte: int) -> float:
    """Half of an e4m3 number with bias 7 and no sign; 0 past the last."""
    if byte > LAST:
        return 0.0
    exponent, mantissa = divmod(byte, 8)
    return math.ldexp(mantissa, -10) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 11)


def decoded(name: str, block: bytes) -> list[float]:
    """Value by value and bit by bit."""
    form = FORMS[name]
    scales = block[form.bits * 4 :]
    stream = int.from_bytes(block[: form.bits * 4], "little")
    values = []
    for j in range(32):
        # Nibbles lie in pairs (0, 16), (1, 17), ...; all other codes one after the other.
        at = 2 * (j % 16) + j // 16 if form.bits == 4 else j
        code = stream >> (form.bits * at) & ((1 << form.bits) - 1)
        values.append(form.levels[code] * scale(scales[j // form.group]))
    return values


def ours(name: str, block: bytes) -> list[float]:
    return dequantize(torch.frombuffer(bytearray(block), dtype=torch.uint8), name).tolist()


@pytest.mark.parametrize("name", TYPES)
def test_ids_and_sizes_are_those_of_the_format(name: str) -> None:
    kind, form = QUANT_TYPES[name], FORMS[name]
    assert (kind.ggml_id, kind.block_values, kind.block_bytes) == (form.ggml_id, 32, form[1])


# Worked by hand. Scale byte 0x40 is (8 + 0) * 2^(8 - 11) = 1, 0x3b is (8 + 3) * 2^(7 - 11) =
# 0.6875, 0x05 is 5 * 2^-10, 0x7e is 14 * 2^4 = 224.
ONE, ELEVEN, SMALL, LARGE = 0x40, 0x3B, 0x05, 0x7E
WORKED = {
    # 0xe4 is the codes 0 1 2 3, 0x1b the codes 3 2 1 0.
    "ROCMFP2": (
        bytes([0xE4] * 4 + [0x1B] * 4 + [ONE, ELEVEN]),
        [-1.0, 0.0, 1.0, 2.0] * 4 + [1.375, 0.6875, 0.0, -0.6875] * 4,
    ),
    # 0 1 2 3 4 5 6 7, lowest bits first, is 0xfac688.
    "ROCMFP3": (
        bytes([0x88, 0xC6, 0xFA] * 4 + [ONE, SMALL]),
        [0.0, 1, 2, 4, 0, -1, -2, -4] * 2
        + [i * 5 / 1024 for i in (0, 1, 2, 4, 0, -1, -2, -4)] * 2,
    ),
    # Low nibbles 0 to 15, high nibbles 15 to 0.
    "ROCMFP4": (
        bytes([j | (15 - j) << 4 for j in range(16)] + [ONE, LARGE]),
        [float(i) for i in (0, 1, 2, 3, 4, 6, 8, 10, 0, -1, -2, -3, -4, -6, -8, -10)]
        + [-224.0 * i for i in (10, 8, 6, 4, 3, 2, 1, 0, -10, -8, -6, -4, -3, -2, -1, 0)],
    ),
    "ROCMFP4_FAST": (
        bytes([j | (15 - j) << 4 for j in range(16)] + [ELEVEN]),
        [0.6875 * i for i in (0, 1, 2, 3, 4, 6, 8, 10, 0, -1, -2, -3, -4, -6, -8, -10)]
        + [-0.6875 * i for i in (10, 8, 6, 4, 3, 2, 1, 0, -10, -8, -6, -4, -3, -2, -1, 0)],
    ),
    # 1, 31, 33 (-1), 63 (-31): 1 | 31 << 6 | 33 << 12 | 63 << 18 = 0xfe17c1.
    "ROCMFP6": (
        bytes([0xC1, 0x17, 0xFE] * 8 + [ELEVEN, ONE]),
        [0.6875, 21.3125, -0.6875, -21.3125] * 4 + [1.0, 31, -1, -31] * 4,
    ),
    "ROCMFP8": (
        bytes([0, 1, 127, 128, 129, 255, 64, 192] * 4 + [SMALL]),
        [i * 5 / 1024 for i in (0, 1, 127, -128, -127, -1, 64, -64)] * 4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_a_block_worked_by_hand_decodes_to_the_bit(name: str) -> None:
    block, values = WORKED[name]
    assert len(block) == FORMS[name].block_bytes
    assert ours(name, block) == values
    assert decoded(name, block) == values


@pytest.mark.parametrize("name", TYPES)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_block_decodes_as_bit_by_bit(name: str, seed: int) -> None:
    """Invalid scales too: they mean 0."""
    block = np.random.default_rng(seed).bytes(FORMS[name].block_bytes)
    assert ours(name, block) == decoded(name, block)


@pytest.mark.parametrize("name", TYPES)
def test_every_code_under_every_scale_decodes_as_bit_by_bit(name: str) -> None:
    form = FORMS[name]
    for byte in range(256):
        codes = sum(
            ((j + 32 * byte) % (1 << form.bits)) << (form.bits * j) for j in range(32)
        ).to_bytes(4 * form.bits, "little")
        block = codes + bytes([byte, 255 - byte][: 32 // form.group])
        assert ours(name, block) == decoded(name, block)


@pytest.mark.parametrize("name", TYPES)
def test_what_a_block_holds_is_written_back_without_loss(name: str) -> None:
    form = FORMS[name]
    rng = np.random.default_rng(5)
    levels = rng.choice(sorted(set(form.levels) - {-128}), (4 * 127, 32)).astype(np.float32)
    # The scale can be told from values that reach the last level of their sign.
    levels[:, :: form.group] = max(form.levels)
    scales = np.array([scale(byte) for byte in range(1, LAST + 1)] * 4 + [0] * 4, np.float32)
    values = torch.from_numpy(levels * scales[:, None])
    assert torch.equal(dequantize(quantize(values, name), name), values)


def promised(name: str, group: torch.Tensor) -> float:
    """The largest root mean square error of a group, as docs/quantize.md states it."""
    levels = sorted(set(FORMS[name].levels) - {-128})
    need = max(float(group.max()) / levels[-1], float(group.min()) / levels[0], 0.0)
    least = next(scale(byte) for byte in range(LAST + 1) if scale(byte) >= need * (1 - 1e-6))
    assert least <= need + max(need / 8, 2**-10)
    gap = max(b - a for a, b in itertools.pairwise(levels))
    return gap / 2 * least


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("spread", [1e-4, 1e-3, 0.02, 1.0, 40.0])
@pytest.mark.parametrize("shape", ["normal", "heavy", "one sided"])
def test_errors_keep_the_stated_bound(name: str, spread: float, shape: str) -> None:
    rng = np.random.default_rng(7)
    drawn = rng.standard_t(3, (200, 64)) if shape == "heavy" else rng.standard_normal((200, 64))
    drawn = (np.abs(drawn) if shape == "one sided" else drawn).clip(-5, 5)
    values = torch.from_numpy((drawn * spread).astype(np.float32))
    found = dequantize(quantize(values, name), name)
    size = FORMS[name].group
    for got, group in zip(found.view(-1, size), values.view(-1, size), strict=True):
        error = float((got - group).double().square().mean().sqrt())
        assert error <= promised(name, group) * (1 + 1e-5)


@pytest.mark.parametrize("name", TYPES)
def test_errors_are_nearly_those_of_the_best_of_all_scales(name: str) -> None:
    values = torch.randn(400, 32, generator=torch.Generator().manual_seed(3)) * 0.1
    groups = values.double().view(-1, FORMS[name].group)
    levels = torch.tensor(sorted(set(FORMS[name].levels) - {-128}), dtype=torch.float64)
    best = torch.full((len(groups),), float("inf"), dtype=torch.float64)
    for byte in range(1, LAST + 1):
        nearest = (groups[..., None] - levels * scale(byte)).abs().amin(-1)
        best = torch.minimum(best, nearest.square().sum(-1))
    errors = dequantize(quantize(values, name), name).double() - values
    assert best.sum() * (1 - 1e-5) <= errors.square().sum() <= best.sum() * 1.1


@pytest.mark.parametrize("name", TYPES)
def test_zeros_and_what_is_too_small_stay_zero(name: str) -> None:
    values = torch.zeros(2, 64)
    values[0, 3], values[1, 40] = 1e-9, -1e-9
    blocks = quantize(values, name)
    assert dequantize(blocks, name).abs().sum() == 0
    assert dequantize(quantize(torch.zeros(0, 64), name), name).shape == (0, 64)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_no_numbers_are_refused(name: str, bad: float) -> None:
    values = torch.ones(3, 64)
    values[1, 5] = bad
    with pytest.raises(ConfigError, match=f"{name}: a value is infinite or no number"):
        quantize(values, name)


@pytest.mark.parametrize("name", TYPES)
def test_values_beyond_the_last_level_of_the_last_scale_are_refused(name: str) -> None:
    for level in (max(FORMS[name].levels), max(min(FORMS[name].levels), -127)):
        values = torch.zeros(1, 32)
        values[0, 7] = level * 224
        assert torch.equal(dequantize(quantize(values, name), name), values)
        values[0, 7] = level * 224 * 1.01
        with pytest.raises(ConfigError, match=f"to {name}: it ends at {level * 224:g}"):
            quantize(values, name)


# ---- files -----------------------------------------------------------------------------------


def file_with(folder: Path, name: str, byte: int, value: int, row: int) -> GgufFile:
    """A file of one tensor [40, 96] whose second block of `row` has `value` at `byte`."""
    weight = QuantTensor.from_values("blk.0.w.weight", torch.ones(40, 96), name)
    kind = QUANT_TYPES[name]
    weight.blocks[row, kind.block_bytes + byte] = value
    return GgufFile.open(write_gguf(folder / "m.gguf", "x", {}, {weight.name: weight}))


BYTES = [
    (name, 4 * form.bits + at) for name, form in FORMS.items() for at in range(32 // form.group)
]


@pytest.mark.parametrize(("name", "byte"), BYTES)
@pytest.mark.parametrize("value", [0x7F, 0x80, 0xFF])
def test_a_scale_that_is_no_number_is_refused_with_its_place(
    name: str, byte: int, value: int, tmp_path: Path
) -> None:
    gguf = file_with(tmp_path, name, byte, value, row=17)
    place = rf"'blk\.0\.w\.weight': byte {byte} of block 52 \(row 17\) is 0x{value:02x}, .* {name}"
    with pytest.raises(ModelFileError, match=place):
        TensorClaims(gguf).take("blk.0.w.weight", 40, 96)


@pytest.mark.parametrize(("name", "byte"), BYTES)
def test_the_last_scale_and_any_codes_are_accepted(name: str, byte: int, tmp_path: Path) -> None:
    for at, value in ((byte, 0x7E), (0, 0xFF), (4 * FORMS[name].bits - 1, 0xFF)):
        gguf = file_with(tmp_path, name, at, value, row=39)
        TensorClaims(gguf).take("blk.0.w.weight", 40, 96)


def test_an_mxfp4_exponent_that_is_no_number_is_refused(tmp_path: Path) -> None:
    TensorClaims(file_with(tmp_path, "MXFP4", 0, 0xFE, row=0)).take("blk.0.w.weight", 40, 96)
    gguf = file_with(tmp_path, "MXFP4", 0, 0xFF, row=0)
    with pytest.raises(ModelFileError, match=r"byte 0 of block 1 \(row 0\) is 0xff"):
        TensorClaims(gguf).take("blk.0.w.weight", 40, 96)
