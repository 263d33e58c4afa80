"""lk_weight_pack and lk_embedding: nothing is lost, little is added, nonsense is refused."""

from __future__ import annotations

import ctypes as c

import pytest
import torch
from luce_kernels_cpu.library import last_error, native
from luce_kernels_cpu.native_weight import NativeWeight
from luce_kernels_cpu.testing import (
    ISAS,
    TYPES,
    columns_of,
    embed,
    force_isa,
    pool,
    random_weight,
    same_bits,
    values,
)
from luce_kernels_cpu.weight_types import INT8_TYPES

from luce_core.weights.quant_types import QUANT_TYPES, QuantTensor, quant_type

LIMIT = 1.10
IDS = torch.tensor([49, 0, 1, 15, 16, 17, 31, 32, 47, 48, 16, 0], dtype=torch.int32)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("qtype", TYPES)
def test_embedding_rows_are_the_dequantised_bits(qtype: str, workers: int) -> None:
    k = columns_of(qtype)
    weight = NativeWeight(pool(workers), random_weight(qtype, 50, k))
    out = embed(pool(workers), weight, IDS)
    assert same_bits(out, values(qtype, 50, k)[IDS.long()])


@pytest.mark.parametrize("qtype", TYPES)
def test_any_bits_of_a_block_are_decoded_as_the_reference_does(qtype: str) -> None:
    kind, k = quant_type(qtype), columns_of(qtype)
    raw = torch.randint(0, 256, (20, kind.row_bytes(k)), dtype=torch.uint8)
    weight = QuantTensor("w", kind, (20, k), raw)
    out = embed(pool(2), NativeWeight(pool(2), weight), torch.arange(20, dtype=torch.int32))
    exact = weight.dequantize()
    # What NaN looks like inside is nobody's promise.
    assert torch.equal(out.isnan(), exact.isnan())
    assert same_bits(out.nan_to_num(0.0), exact.nan_to_num(0.0))


@pytest.mark.parametrize("qtype", TYPES)
def test_repacked_size_is_within_a_tenth_of_the_file(qtype: str) -> None:
    weight = random_weight(qtype, 576, 768)
    assert NativeWeight(pool(2), weight).nbytes <= LIMIT * weight.nbytes


@pytest.mark.parametrize("qtype", TYPES)
def test_kernel_names_say_type_and_instruction_set(qtype: str) -> None:
    usual = native().lk_isa().decode()
    for name in filter(force_isa, ISAS):
        weight = NativeWeight(pool(1), random_weight(qtype, 50, columns_of(qtype)))
        assert weight.kernel == f"{qtype.lower()} {name}"
        assert weight.takes_int8 == (qtype in INT8_TYPES)
    force_isa(usual)


def pack(ggml_type: int, n: int, k: int, size: int, data: bool = True) -> object:
    memory = torch.zeros(max(size, 1), dtype=torch.uint8)
    address = memory.data_ptr() if data else None
    return native().lk_weight_pack(pool(1).pool, ggml_type, n, k, address, size)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((99, 16, 32, 288), "type 99"),
        ((QUANT_TYPES["Q8_1"].ggml_id, 16, 32, 640), "type 9"),
        ((2, 16, 31, 288), "blocks of 32"),
        ((12, 16, 128, 1152), "blocks of 256"),
        ((2, 16, 32, 287), "288 bytes, got 287"),
        ((2, 16, 32, 289), "288 bytes, got 289"),
        ((2, 0, 32, 0), "out of range"),
        ((2, -16, 32, -288), "out of range"),
        ((2, 16, 0, 0), "out of range"),
        ((0, 1 << 40, 1 << 20, 64), "out of range"),
        ((0, 1, 1 << 40, 64), "out of range"),
        ((2, 16, 32, 288, False), "288 bytes"),
    ],
)
def test_what_cannot_be_packed_is_refused_with_the_reason(
    arguments: tuple[int, ...], reason: str
) -> None:
    assert pack(*arguments) is None
    assert reason in last_error(native())


def test_unknown_instruction_sets_are_refused() -> None:
    usual = native().lk_isa()
    assert native().lk_force_isa(b"neon") == -1
    assert "neon" in last_error(native())
    assert native().lk_force_isa(None) == -1
    assert native().lk_isa() == usual


def test_code_books_of_a_wrong_size_are_refused() -> None:
    book = (c.c_int8 * 8)()
    assert native().lk_set_code_book(QUANT_TYPES["IQ2_XS"].ggml_id, book, 8) == -1
    assert "4096 bytes, got 8" in last_error(native())
    assert native().lk_set_code_book(QUANT_TYPES["Q4_0"].ggml_id, book, 8) == -1
    assert "no code book" in last_error(native())
