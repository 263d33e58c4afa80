"""Native norm, rope, swiglu, add, gather, greedy tokens and cache writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from luce_kernels_cpu import eager, structs
from luce_kernels_cpu.offers import register_kernels
from luce_kernels_cpu.provider import Provider
from luce_kernels_cpu.structs import Op
from luce_kernels_cpu.views import (
    NO_QUANTIZED,
    quantized_at,
    quantized_bytes,
    tensor_rows,
)
from torch import Tensor

from luce_core.device import Device
from luce_core.ops.cases import CaseMaker
from luce_core.ops.core_ops import core_registry
from luce_core.ops.kv_layout import CACHE_TYPES, KvLayout, decode_rows, encode_rows, storage_dtype
from luce_core.testing.op_parity import ParityCase, check_parity, parity_cases

CPU = Device.parse("cpu")
ROW_OPS = ("rms_norm", "rope", "swiglu", "add", "gather_rows", "greedy_token", "kv_write")

_registry = core_registry()
register_kernels(_registry.register_kernel)
CASES = [
    case
    for case in parity_cases(_registry, CPU)
    if case.spec.name in ROW_OPS and case.kernel.fn.__module__ == eager.__name__
]


@pytest.fixture
def on(pools: dict[int, Provider], monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Provider]:
    """Let the eager ops run on so many workers."""

    def choose(workers: int) -> Provider:
        monkeypatch.setattr(eager, "provider", lambda: pools[workers])
        return pools[workers]

    return choose


def wide(*shape: int, seed: int = 0, std: float = 1.0) -> Tensor:
    """Values inside wider rows of NaN, at an address that is not a multiple of a vector."""
    return CaseMaker("cpu", torch.float32, seed).columns(*shape, std=std)


def empty(*shape: int) -> Tensor:
    return torch.full(shape, float("nan"))


class Int8Rows:
    """Memory for an lk_quantized, filled with 0xAA."""

    def __init__(self, rows: int, k: int, block: int) -> None:
        self.size = quantized_bytes(rows, k)
        self.memory = torch.full((self.size + 64,), 0xAA, dtype=torch.uint8)
        self.record = quantized_at(-(-self.memory.data_ptr() // 64) * 64, rows, k, block)

    def equals(self, other: Int8Rows) -> bool:
        mine, theirs = (
            x.memory[x.record.q - x.memory.data_ptr() :][: x.size] for x in (self, other)
        )
        return torch.equal(mine, theirs)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_parity(case: ParityCase, isa: str, workers: int, on: Callable[[int], Provider]) -> None:
    on(workers)
    check_parity(case, CPU)


def test_bits_do_not_depend_on_the_workers(isa: str, on: Callable[[int], Provider]) -> None:
    x, y, weight = wide(7, 3, 96), wide(7, 3, 96, seed=1), torch.randn(96)
    positions = torch.arange(990, 997, dtype=torch.int32)
    turns = {"inv_freq": 10000.0 ** -torch.linspace(0, 1, 40), "attention_factor": 1.1}
    calls: tuple[Callable[[Tensor], None], ...] = (
        lambda out: eager.rms_norm(x, weight, out, eps=1e-5),
        lambda out: eager.rope(x, positions, out, rotary_dim=80, interleaved=True, **turns),
        lambda out: eager.rope(x, positions, out, rotary_dim=80, interleaved=False, **turns),
        lambda out: eager.swiglu(x.flatten(1), y.flatten(1), out.flatten(1), limit=None),
        lambda out: eager.add(x.flatten(1), y.flatten(1), out.flatten(1)),
    )
    for call in calls:
        outputs = []
        for workers in (1, 2, 3):
            on(workers)
            out = empty(7, 3, 96)
            call(out)
            outputs.append(out)
        assert not outputs[0].isnan().any()
        assert torch.equal(outputs[0], outputs[1])
        assert torch.equal(outputs[0], outputs[2])


# ---- norm ------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [8, 33, 576, 5120])
def test_norm_is_within_rounding_of_float64(
    width: int, isa: str, on: Callable[[int], Provider]
) -> None:
    on(2)
    x, weight, out = wide(5, width, std=7.0), torch.randn(width), empty(5, width)
    eager.rms_norm(x, weight, out, eps=1e-5)
    exact = x.double()
    exact = exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    torch.testing.assert_close(out.double(), exact, rtol=5e-7, atol=1e-12)


@pytest.mark.parametrize("keep_floats", [True, False])
@pytest.mark.parametrize(
    ("width", "group", "block"),
    [(960, 64, 32), (960, 320, 32), (960, 960, 32), (768, 256, 256), (768, 768, 256)],
)
def test_norm_quantises_what_it_writes(
    width: int, group: int, block: int, keep_floats: bool, isa: str, on: Callable[[int], Provider]
) -> None:
    pool, batch = on(2), structs.Batch(rows=5)
    x, weight, out = wide(5, width), torch.randn(group), empty(5, width)
    plain = structs.NormArgs(
        tensor_rows(x), weight.data_ptr(), 1e-5, group, tensor_rows(out), NO_QUANTIZED
    )
    pool.run(Op.NORM, plain, batch)
    expected = Int8Rows(5, width, block)
    pool.run(Op.QUANTIZE, structs.QuantizeArgs(tensor_rows(out), expected.record), batch)

    got, kept = Int8Rows(5, width, block), empty(5, width)
    target = tensor_rows(kept)
    if not keep_floats:
        target.data = None
    fused = structs.NormArgs(tensor_rows(x), weight.data_ptr(), 1e-5, group, target, got.record)
    pool.run(Op.NORM, fused, batch)
    assert got.equals(expected)
    assert torch.equal(kept, out) if keep_floats else kept.isnan().all()


# ---- rope ------------------------------------------------------------------------------------


def test_rope_turns_by_the_float32_angle_up_to_a_million_positions(
    isa: str, on: Callable[[int], Provider]
) -> None:
    on(2)
    positions = torch.cat((torch.arange(3000), torch.arange(999_000, 1_000_001))).int()
    inv_freq = 10000.0 ** -torch.arange(0, 1, 1 / 24)
    x = torch.zeros(len(positions), 1, 48)
    x[..., :24] = 1.0
    out = empty(len(positions), 1, 48)
    eager.rope(
        x, positions, out, inv_freq=inv_freq, attention_factor=1.0, rotary_dim=48,
        interleaved=False,
    )  # fmt: skip
    angles = (positions.float()[:, None] * inv_freq).double()
    expected = torch.cat((angles.cos(), angles.sin()), -1)
    assert (out[:, 0] - expected).abs().max() < 2e-7


@pytest.mark.parametrize("interleaved", [True, False])
def test_rope_works_in_place(interleaved: bool, isa: str, on: Callable[[int], Provider]) -> None:
    on(1)
    x, positions = wide(4, 3, 600), torch.tensor([0, 5, 77, 4095], dtype=torch.int32)
    out = empty(4, 3, 600)
    facts: dict[str, Any] = {
        "inv_freq": torch.linspace(1, 0.001, 290),
        "attention_factor": 1.0,
        "rotary_dim": 580,
        "interleaved": interleaved,
    }
    eager.rope(x, positions, out, **facts)
    assert torch.equal(out[0], x[0]), "position 0 turns nothing"
    eager.rope(x, positions, x, **facts)
    assert torch.equal(x, out)


# ---- swiglu ----------------------------------------------------------------------------------


def test_swiglu_is_within_a_few_ulp_of_float64(isa: str, on: Callable[[int], Provider]) -> None:
    on(2)
    gate = torch.linspace(-87, 100, 200_001)[None]
    up, out = torch.ones_like(gate), torch.full_like(gate, float("nan"))
    eager.swiglu(gate, up, out, limit=None)
    exact = torch.nn.functional.silu(gate.double())
    assert ((out - exact) / exact.abs().clamp(min=1e-37)).abs().max() < 4 * 2**-24 * 1.5


def test_swiglu_at_the_ends_of_float32(isa: str, on: Callable[[int], Provider]) -> None:
    on(1)
    inf, nan = float("inf"), float("nan")
    gate = torch.tensor([[inf, 3e38, -3e38, -104.0, -88.5, 0.0, -0.0, nan, 1.0, -inf]])
    up = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, nan, 1.0]])
    out = empty(1, 10)
    eager.swiglu(gate, up, out, limit=None)
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-36, equal_nan=True)
    eager.swiglu(gate, up, out, limit=2.0)
    assert out[0, 7:9].isnan().all()


@pytest.mark.parametrize("keep_floats", [True, False])
@pytest.mark.parametrize(("width", "block"), [(1568, 32), (1536, 256)])
def test_swiglu_quantises_what_it_writes(
    width: int, block: int, keep_floats: bool, isa: str, on: Callable[[int], Provider]
) -> None:
    pool, batch = on(2), structs.Batch(rows=3)
    gate, up, out = wide(3, width), wide(3, width, seed=1), empty(3, width)
    rows = tensor_rows(gate), tensor_rows(up)
    pool.run(Op.SWIGLU, structs.SwigluArgs(*rows, tensor_rows(out), 0.0, NO_QUANTIZED), batch)
    expected = Int8Rows(3, width, block)
    pool.run(Op.QUANTIZE, structs.QuantizeArgs(tensor_rows(out), expected.record), batch)

    got, kept = Int8Rows(3, width, block), empty(3, width)
    target = tensor_rows(kept)
    if not keep_floats:
        target.data = None
    pool.run(Op.SWIGLU, structs.SwigluArgs(*rows, target, 0.0, got.record), batch)
    assert got.equals(expected)
    assert torch.equal(kept, out) if keep_floats else kept.isnan().all()


# ---- cache -----------------------------------------------------------------------------------


def written(values: Tensor, kind: str) -> Tensor:
    """The bytes that kv_write stores for rows [R, kv_heads, D]."""
    rows, kv_heads, dim = values.shape
    layout = KvLayout(kv_heads=kv_heads, head_dim=dim, block_size=4, k_type=kind, v_type=kind)
    cache = layout.allocate(-(-rows // 4))
    target = torch.arange(rows, dtype=torch.int32).flip(0)
    eager.kv_write(values, values, target, cache.k, cache.v, **layout.facts)
    assert torch.equal(cache.k.view(torch.uint8), cache.v.view(torch.uint8))
    return cache.k.flatten(0, 1)[:rows].flip(0).contiguous().view(torch.uint8)


def difficult(rows: int) -> Tensor:
    """Rows [rows, 2, 64] with ties, halves, zeros, one sign, tiny and large values."""
    values = torch.randn(rows, 2, 64, generator=torch.Generator().manual_seed(3))
    values[0] = 0.0
    values[1] = torch.tensor([1.0, -1.0] * 32)
    values[2] = torch.arange(-32.0, 32.0) * 127 / 64
    values[3] = -values[3].abs() * 1e-6
    values[4] *= 500.0
    values[5, :, 5] = 12.7
    values[5, :, 6] = torch.tensor(0.15)
    values[6] = torch.arange(64) / 2.0 - 16
    values[7, :, 3], values[7, :, 9] = -9.0, 9.0
    return values


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_cache_bytes_are_those_of_the_layout_and_of_gguf(
    kind: str, workers: int, isa: str, on: Callable[[int], Provider]
) -> None:
    on(workers)
    values = difficult(400)
    got = written(values, kind)
    assert torch.equal(got, encode_rows(values, kind).contiguous().view(torch.uint8))
    if kind not in ("f32", "f16"):
        type_ = gguf.GGMLQuantizationType[kind.upper()]
        assert np.array_equal(got.numpy(), gguf.quants.quantize(values.numpy(), type_))


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("dim", [16, 24, 40, 200])
def test_plain_cache_rows_of_any_size(
    dim: int, kind: str, isa: str, on: Callable[[int], Provider]
) -> None:
    on(2)
    values = wide(9, 3, dim)
    expected = encode_rows(values, kind).contiguous().view(torch.uint8)
    assert torch.equal(written(values, kind), expected)


@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_nan_is_stored_as_nan(kind: str, isa: str, on: Callable[[int], Provider]) -> None:
    on(1)
    values = torch.randn(1, 1, 64)
    values[0, 0, 40] = float("nan")
    stored = written(values, kind).view(storage_dtype(kind))
    read = decode_rows(stored, kind)[0, 0]
    assert read[40].isnan()
    assert not read[:32].isnan().any()


# ---- greedy tokens and copies ----------------------------------------------------------------


@pytest.mark.parametrize("vocab", [1, 3, 16, 37, 1000])
def test_greedy_tokens_are_the_first_best_and_none_of_what_is_not_finite(
    vocab: int, isa: str, on: Callable[[int], Provider]
) -> None:
    on(2)
    nan, inf = float("nan"), float("inf")
    random = torch.Generator().manual_seed(vocab)
    logits = wide(60, vocab)
    logits[:20] = torch.randint(0, 3, (20, vocab), generator=random).float()
    logits[20] = -inf
    logits[21] = 0.0
    logits[22, vocab // 2] = inf
    logits[23, vocab // 2 :] = nan
    logits[24] = -0.0
    logits[25, vocab // 3], logits[25, -1] = nan, inf
    out = torch.full((60,), -7, dtype=torch.int32)
    eager.greedy_token(logits, out)
    best = logits.max(-1, keepdim=True).values
    first = (logits == best).int().argmax(-1)
    bad = ~best.isfinite().squeeze(-1)
    assert bad[20:26].tolist() == [True, False, True, True, False, True]
    assert torch.equal(out, torch.where(bad, -1, first).int())


@pytest.mark.parametrize("width", [1, 15, 576])
def test_add_and_gather_write_their_rows_and_nothing_else(
    width: int, isa: str, on: Callable[[int], Provider]
) -> None:
    on(2)
    a, b = wide(6, width), wide(6, width, seed=1)
    out = empty(6, width + 8)
    pool, batch = on(2), structs.Batch(rows=6)
    pool.run(Op.ADD, structs.AddArgs(*map(tensor_rows, (a, b, out[:, 3 : 3 + width]))), batch)
    assert torch.equal(out[:, 3 : 3 + width], a + b)
    assert out[:, :3].isnan().all()
    assert out[:, 3 + width :].isnan().all()
    picked = torch.tensor([5, 0, 5], dtype=torch.int32)
    gathered = empty(3, width)
    eager.gather_rows(a, picked, gathered)
    assert torch.equal(gathered, a[picked])
