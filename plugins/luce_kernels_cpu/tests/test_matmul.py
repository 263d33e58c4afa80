"""lk_matmul and lk_quantize: near the exact product, and the same bits in any company."""

from __future__ import annotations

import pytest
import torch
from luce_kernels_cpu.library import native
from luce_kernels_cpu.native_weight import NativeWeight
from luce_kernels_cpu.testing import (
    ISAS,
    TYPES,
    Quantized,
    columns_of,
    force_isa,
    matmul,
    pool,
    random_weight,
    same_bits,
    values,
)
from torch import Tensor

N = 50  # three whole tiles and two rows
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64, 257)
# Rounding activations to int8 per 32 or 256 values costs up to d / 2 of each; the rest is float32.
FLOAT_ERROR = 3e-7
NAN, INF = float("nan"), float("inf")


def packed(qtype: str, n: int, k: int) -> NativeWeight:
    return NativeWeight(pool(2), random_weight(qtype, n, k))


def activations(rows: int, k: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, k, generator=torch.Generator().manual_seed(seed))


def bf16(x: Tensor) -> Tensor:
    return x.bfloat16().to(x.dtype)


def cut_to_bf16(w: Tensor) -> Tensor:
    """float32 without what bfloat16 cannot hold."""
    return (w.view(torch.int32) & -0x10000).view(torch.float32)


def as_read(weight: NativeWeight, x: Tensor) -> Tensor:
    """The activations that the kernel multiplies, float64."""
    if weight.kernel.startswith("bf16"):
        return bf16(x).double()
    if not weight.takes_int8:
        return x.double()
    q = Quantized(pool(1), x, weight.int8_block)
    blocks = q.q.double().view(*q.d.shape, weight.int8_block)
    return (blocks * q.d.double()[..., None]).flatten(1)


def exact_product(weight: NativeWeight, w: Tensor, x: Tensor) -> Tensor:
    """What the kernel would give if it added without errors, float64."""
    if weight.kernel != "f16 amx":
        return as_read(weight, x) @ w.double().T
    high = bf16(x)
    low = bf16(x - high).double()
    return high.double() @ w.double().T + low @ cut_to_bf16(w).double().T


def check_product(qtype: str, n: int, k: int, rows: int) -> None:
    weight, w = packed(qtype, n, k), values(qtype, n, k)
    x = activations(rows, k)
    out = matmul(pool(2), weight, x).double()
    # Errors of float32 sums are measured by the sum of magnitudes.
    scale = as_read(weight, x).abs() @ w.double().T.abs()
    assert ((out - exact_product(weight, w, x)).abs() <= FLOAT_ERROR * scale).all()
    error = (out - x.double() @ w.double().T).abs()
    if weight.takes_int8:
        block = weight.int8_block
        step = x.view(rows, -1, block).abs().amax(-1).double() / 254 * 1.0001
        bound = step.repeat_interleave(block, dim=1) @ w.double().T.abs()
        assert (error <= bound + FLOAT_ERROR * scale).all()
    else:
        rounding = {"BF16": 2**-8, "F16": 2**-15}.get(qtype, 0)
        assert (error <= (rounding + FLOAT_ERROR) * scale).all()


@pytest.mark.parametrize("qtype", TYPES)
def test_product_is_that_of_the_dequantised_weight(qtype: str, isa: str) -> None:
    for rows in (1, 3, 9):
        check_product(qtype, N, columns_of(qtype), rows)


@pytest.mark.slow
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("qtype", TYPES)
def test_product_of_every_row_count(qtype: str, rows: int, isa: str) -> None:
    check_product(qtype, N, columns_of(qtype), rows)
    check_product(qtype, 576, 3 * 256, rows)


@pytest.mark.parametrize("qtype", TYPES)
def test_bits_of_a_row_know_neither_company_nor_workers(qtype: str, isa: str) -> None:
    k = columns_of(qtype)
    weight, x = packed(qtype, N, k), activations(71, k)
    together = matmul(pool(2), weight, x)
    assert not together.isnan().any()
    for workers in (1, 2, 3):
        for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64):
            start = rows % 5
            alone = matmul(pool(workers), weight, x[start : start + rows])
            assert same_bits(alone, together[start : start + rows]), (workers, rows)


@pytest.mark.parametrize("rows", [11, 37])  # few for any kernel; many, the last panel in part
@pytest.mark.parametrize("qtype", TYPES)
def test_instruction_sets_give_the_same_bits(qtype: str, rows: int) -> None:
    usual = native().lk_isa().decode()
    k = 3 * columns_of(qtype)
    x, outputs = activations(rows, k) * 3, []
    for name in ISAS:
        # The tile registers take F16 weights apart.
        if force_isa(name) and (qtype, name) != ("F16", "amx"):
            weight = packed(qtype, N, k)
            assert weight.kernel == f"{qtype.lower()} {name}"
            outputs.append(matmul(pool(2), weight, x))
    force_isa(usual)
    assert all(same_bits(out, outputs[0]) for out in outputs)


@pytest.mark.parametrize("rows", [2, 32])
@pytest.mark.parametrize("qtype", ["Q8_0", "IQ4_NL", "Q6_K", "Q5_1", "ROCMFP8"])
def test_largest_codes_do_not_saturate(qtype: str, rows: int, isa: str) -> None:
    """All activations at 127 steps against random and extreme weights: int dots stay exact."""
    k = 512
    weight = random_weight(qtype, N, k)
    blocks = weight.blocks.clone()
    if qtype in ("Q8_0", "ROCMFP8"):
        first = {"Q8_0": 2, "ROCMFP8": 0}[qtype]
        codes = blocks.view(N, -1, weight.qtype.block_bytes)[:, :, first : first + 32]
        codes[: N // 2] = 0x80  # -128
        codes[N // 2 :] = 0x7F
    native_weight = NativeWeight(pool(2), type(weight)("w", weight.qtype, (N, k), blocks))
    w = type(weight)("w", weight.qtype, (N, k), blocks).dequantize().double()
    x = torch.ones(rows, k) * torch.tensor([[1.0], [-1.0]]).repeat(rows // 2, 1)
    out = matmul(pool(2), native_weight, x)
    exact = as_read(native_weight, x) @ w.T
    assert ((out.double() - exact).abs() <= FLOAT_ERROR * w.abs().sum(1)).all()


# Where the scales of a block of 256 lie, and the largest quants with scales at both their ends.
SUPER_SCALES = {"Q2_K": (0, 16), "Q3_K": (96, 108), "Q4_K": (4, 16), "Q5_K": (4, 16),
                "Q6_K": (192, 208), "IQ4_XS": (2, 8)}  # fmt: skip


@pytest.mark.parametrize("rows", [2, 32])
@pytest.mark.parametrize("code", [0x00, 0xFF])
@pytest.mark.parametrize("scale", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("qtype", sorted(SUPER_SCALES))
def test_sums_of_extreme_blocks_are_exact(
    qtype: str, scale: int, code: int, rows: int, isa: str
) -> None:
    """Equal quants and scales at the ends of their ranges, activations of 127 steps: no integer
    saturates or wraps on its way through 256 values."""
    k, random = 512, random_weight(qtype, N, 512)
    blocks = random.blocks.clone().view(N, 2, -1)
    size, (begin, end) = blocks.shape[-1], SUPER_SCALES[qtype]
    halves = {"Q2_K": 80, "Q3_K": 108, "Q4_K": 0, "Q5_K": 0, "Q6_K": 208, "IQ4_XS": 0}[qtype]
    count = 4 if qtype in ("Q2_K", "Q4_K", "Q5_K") else 2
    kept = [*range(halves, halves + count)]
    filled = [i for i in range(size) if i not in kept and not begin <= i < end]
    blocks[..., filled] = code
    blocks[..., begin:end] = scale
    weight = type(random)("w", random.qtype, (N, k), blocks.view(N, -1))
    native_weight, w = NativeWeight(pool(2), weight), weight.dequantize().double()
    x = torch.ones(rows, k) * torch.tensor([[1.0], [-1.0]]).repeat(rows // 2, 1)
    out = matmul(pool(2), native_weight, x)
    exact = as_read(native_weight, x) @ w.T
    # Where minima nearly cancel products, errors are those of the products.
    d = blocks[0, 0, halves : halves + 2].view(torch.float16).double().abs()
    most = w.abs().sum(1) + k * 64 * 32 * d * (count == 4)
    assert ((out.double() - exact).abs() <= FLOAT_ERROR * most).all()


@pytest.mark.parametrize("qtype", ["Q4_1", "Q8_0", "Q4_K", "Q6_K", "Q2_K", "F16", "IQ3_S"])
def test_long_rows(qtype: str) -> None:
    check_product(qtype, 17, 32768, 9)


@pytest.mark.parametrize("k", [1, 2, 31, 33, 255, 257, 1000])
@pytest.mark.parametrize("qtype", ["F32", "F16", "BF16", "I8", "F64"])
def test_odd_columns_of_plain_types(qtype: str, k: int, isa: str) -> None:
    check_product(qtype, 19, k, 5)


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 33])
@pytest.mark.parametrize("qtype", ["Q4_1", "Q6_K", "BF16", "TQ2_0"])
def test_any_number_of_weight_rows(qtype: str, n: int) -> None:
    check_product(qtype, n, 256, 3)
    weight, x = packed(qtype, n, 256), activations(3, 256)
    wide = torch.full((3, n + 5), NAN)
    matmul(pool(3), weight, x, out=wide[:, 2 : n + 2])
    assert same_bits(wide[:, 2 : n + 2], matmul(pool(1), weight, x))
    assert wide[:, :2].isnan().all()
    assert wide[:, n + 2 :].isnan().all()


@pytest.mark.parametrize("qtype", ["Q4_1", "F32", "IQ2_XS"])
def test_bias_and_residual_are_added_after_the_product_in_this_order(qtype: str, isa: str) -> None:
    k = columns_of(qtype)
    weight, x = packed(qtype, N, k), activations(9, k)
    bias, residual = torch.randn(N), torch.randn(9, N + 3)[:, 1:-2]
    product = matmul(pool(2), weight, x)
    assert same_bits(matmul(pool(2), weight, x, bias=bias), product + bias)
    expected = product + bias + residual
    assert same_bits(matmul(pool(2), weight, x, bias=bias, residual=residual), expected)
    matmul(pool(2), weight, x, bias=bias, residual=residual, out=residual)
    assert same_bits(residual, expected)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("qtype", ["Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q6_K", "IQ4_XS", "BF16"])
def test_a_row_with_no_number_becomes_no_numbers_and_others_do_not(
    qtype: str, bad: float, isa: str
) -> None:
    for rows in (5, 21):
        weight, x = packed(qtype, N, 256), activations(rows, 256)
        clean = matmul(pool(2), weight, x)
        x[3, 77] = bad
        out = matmul(pool(2), weight, x)
        assert not out[3].isfinite().any()
        keep = [row for row in range(rows) if row != 3]
        assert same_bits(out[keep], clean[keep])


def test_infinite_sums_of_float_weights_stay_infinite(isa: str) -> None:
    weight = NativeWeight(pool(2), random_weight("F32", 3, 96))
    w, x = values("F32", 3, 96), torch.zeros(1, 96)
    x[0, 40] = INF
    assert same_bits(matmul(pool(1), weight, x), torch.copysign(torch.tensor(INF), w[:, 40])[None])


# ---- lk_quantize -----------------------------------------------------------------------------


@pytest.mark.parametrize("block", [32, 256])
def test_quants_are_the_nearest_steps_of_the_largest_value(block: int, isa: str) -> None:
    x = activations(7, 35 * block) * torch.logspace(-20, 20, 35).repeat_interleave(block)
    got = Quantized(pool(2), x, block)
    blocks = x.view(7, 35, block)
    largest = blocks.abs().amax(-1)
    assert same_bits(got.d, largest / 127)
    q = (blocks * (127 / largest)[..., None]).round()
    assert torch.equal(got.q.view(7, 35, block).float(), q)
    if block == 32:
        assert same_bits(got.s, got.d * q.sum(-1))
    else:
        assert torch.equal(got.s.float(), q.view(7, -1, 16).sum(-1))


@pytest.mark.parametrize("block", [32, 256])
def test_quantised_bits_know_neither_company_nor_workers(block: int, isa: str) -> None:
    x = activations(5, 35 * block)
    together = Quantized(pool(2), x, block)
    for workers in (1, 3):
        for row in range(5):
            alone = Quantized(pool(workers), x[row : row + 1], block)
            assert torch.equal(alone.q[0], together.q[row])
            assert same_bits(alone.d[0], together.d[row])
            assert torch.equal(alone.s[0], together.s[row])


@pytest.mark.parametrize("block", [32, 256])
def test_blocks_of_zeros_of_dust_and_of_no_numbers(block: int, isa: str) -> None:
    x = torch.zeros(1, 6 * block)
    x[0, block] = 1e-44
    x[0, 2 * block] = NAN
    x[0, 3 * block + 4] = -INF
    x[0, 4 * block : 5 * block] = torch.finfo(torch.float32).max
    x[0, 5 * block] = -0.0
    got = Quantized(pool(1), x, block)
    quants = got.q.view(6, block).int().abs().amax(1)
    assert torch.equal(quants, torch.tensor([0, 0, 0, 0, 127, 0]))
    assert got.d[0, [0, 1, 5]].abs().sum() == 0
    assert got.d[0, [2, 3]].isnan().all()
    if block == 32:
        assert got.s[0, [2, 3]].isnan().all()
    assert got.d[0, 4].isfinite()
