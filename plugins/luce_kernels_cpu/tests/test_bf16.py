"""F16 and BF16 weights by bfloat16 activations: whatever the exponents, the order of the sums, and
what the packed forms hold."""

from __future__ import annotations

import pytest
import torch
from luce_kernels_cpu.library import native
from luce_kernels_cpu.native_weight import NativeWeight
from luce_kernels_cpu.testing import ISAS, embed, force_isa, matmul, pool, same_bits
from torch import Tensor

from luce_core.weights.quant_types import QuantTensor, quant_type

N, K = 35, 224
ROWS = 37  # three panels, the last in part
NARROW = (1, 2, 3, 5, 8, 15, 16, 17)
# Largest magnitudes, as powers of two: [weights, activations].
RANGES = [(0, 0), (-120, 0), (-60, -64), (-70, -70), (60, 60), (-126, 127), (127, -126)]


def weight_of(values: Tensor, qtype: str) -> QuantTensor:
    """[n, k] float16 or bfloat16 as a weight."""
    n, k = values.shape
    return QuantTensor("w", quant_type(qtype), (n, k), values.contiguous().view(torch.uint8))


def packed(values: Tensor, qtype: str) -> NativeWeight:
    return NativeWeight(pool(2), weight_of(values, qtype))


def spread(*shape: int, top: int, depth: int, seed: int) -> Tensor:
    """float32 of random signs and mantissas, exponents evenly from top - depth to top."""
    source = torch.Generator().manual_seed(seed)
    mantissas = 1 + torch.rand(shape, generator=source, dtype=torch.float64)
    signs = torch.randint(0, 2, shape, generator=source) * 2 - 1
    exponents = torch.randint(top - depth, top + 1, shape, generator=source)
    return (mantissas * signs * torch.exp2(exponents.double() - 1)).float()


def flushed(x: Tensor) -> Tensor:
    """float32 with zeros for what is subnormal."""
    return torch.where(x.abs() < torch.finfo(torch.float32).tiny, 0 * x, x)


def in_turn(chain: Tensor, terms: Tensor) -> Tensor:
    """chain + each of terms [..., i], one after the other, in float32; subnormal sums are zero."""
    for i in range(terms.shape[-1]):
        chain = (chain.double() + terms[..., i]).float()
        chain = flushed(chain)
    return chain


def added_in_order(weight: Tensor, x: Tensor) -> Tensor:
    """x [R, K] @ weight^T [N, K], both bfloat16 values, as the tile instructions add: even and odd
    values apart in runs of 32 from zero, their sum to what is there."""
    products = x.double()[:, None] * weight.double()[None]
    total = torch.zeros(products.shape[:2])
    for run in products.split(32, dim=-1):
        even, odd = (in_turn(torch.zeros_like(total), run[..., i::2]) for i in (0, 1))
        total = in_turn(total, in_turn(even, odd.double()[..., None]).double()[..., None])
    return total


@pytest.mark.parametrize(("weights", "activations"), RANGES)
def test_bf16_sums_are_added_in_one_order_at_any_exponents(weights, activations, isa) -> None:
    w = spread(N, K, top=weights, depth=6, seed=0).bfloat16()
    x = spread(ROWS, K, top=activations, depth=6, seed=1)
    together = matmul(pool(2), packed(w, "BF16"), x)
    expected = added_in_order(flushed(w.float()), flushed(x).bfloat16().float())
    assert same_bits(together + 0.0, expected + 0.0)  # zeros of either sign are the same


@pytest.mark.parametrize(("weights", "activations"), RANGES)
@pytest.mark.parametrize("qtype", ["F16", "BF16"])
def test_bits_of_a_row_are_the_same_alone_at_any_exponents(
    qtype, weights, activations, isa
) -> None:
    kind, top = (torch.bfloat16, weights) if qtype == "BF16" else (torch.float16, weights // 20)
    weight = packed(spread(N, K, top=top, depth=20, seed=2).to(kind), qtype)
    x = spread(ROWS, K, top=activations, depth=20, seed=3)
    together = matmul(pool(2), weight, x)
    for rows in NARROW:
        for workers in (1, 3):
            alone = matmul(pool(workers), weight, x[rows : 2 * rows])
            assert same_bits(alone, together[rows : 2 * rows]), (rows, workers)


def test_instruction_sets_give_the_same_bits_at_any_exponents() -> None:
    usual = native().lk_isa().decode()
    for weights, activations in RANGES:
        w = spread(N, K, top=weights, depth=20, seed=4).bfloat16()
        x = spread(ROWS, K, top=activations, depth=20, seed=5)
        outputs = [matmul(pool(2), packed(w, "BF16"), x) for name in ISAS if force_isa(name)]
        assert all(same_bits(out, outputs[0]) for out in outputs)
    force_isa(usual)


@pytest.mark.parametrize("top", [-14, -8, 0, 6, 16])  # subnormal; small; usual; nearly too large
def test_every_f16_value_counts_whole(top: int, isa: str) -> None:
    """Powers of two as activations, one to a row: the products are the weights."""
    w = spread(N, K, top=top, depth=10, seed=6).half().clamp(-65504, 65504)
    w[0, :3] = torch.tensor([0.0, -0.0, 2**-24])
    rows = torch.eye(K) * 2.0**-3
    assert torch.equal(matmul(pool(2), packed(w, "F16"), rows).T * 8, w.float())


@pytest.mark.parametrize("qtype", ["F16", "BF16"])
@pytest.mark.parametrize("k", [75, 224])
def test_embedding_gives_the_values_of_the_file(qtype: str, k: int, isa: str) -> None:
    kind = torch.float16 if qtype == "F16" else torch.bfloat16
    w = spread(N, k, top=4, depth=28, seed=7).to(kind)
    ids = torch.tensor([0, 15, 16, 34], dtype=torch.int32)
    assert same_bits(embed(pool(2), packed(w, qtype), ids), w[ids.long()].float())


@pytest.mark.parametrize("qtype", ["F16", "BF16"])
def test_longest_rows_are_multiplied(qtype: str, isa: str) -> None:
    kind = torch.float16 if qtype == "F16" else torch.bfloat16
    for k in (1 << 16, (1 << 16) + 1, 1 << 20):
        w = spread(3, k, top=0, depth=3, seed=8).to(kind)
        x = spread(2, k, top=0, depth=3, seed=9).bfloat16().float()
        out = matmul(pool(2), packed(w, qtype), x)
        exact = x.double() @ w.double().T
        scale = x.double().abs() @ w.double().abs().T
        assert ((out - exact).abs() <= 2e-6 * scale).all()


@pytest.mark.parametrize("qtype", ["F16", "BF16", "F32"])
def test_packed_forms_take_no_more_room_than_the_file(qtype: str) -> None:
    values = torch.zeros(64, 4096, dtype={"F16": torch.float16, "BF16": torch.bfloat16}.get(qtype))
    assert packed(values, qtype).nbytes == values.nbytes
