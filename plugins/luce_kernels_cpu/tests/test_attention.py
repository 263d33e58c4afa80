"""Native attention: the references' values, and bits that depend on a row's own keys only."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from luce_kernels_cpu import eager, provider, structs
from luce_kernels_cpu.batch_view import fill_batch
from luce_kernels_cpu.library import native
from luce_kernels_cpu.provider import Provider
from luce_kernels_cpu.structs import Domain, Op
from luce_kernels_cpu.views import cache_view, tensor_rows
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, OpCase, PagedCase, Segment
from luce_core.ops.kv_layout import CACHE_TYPES, KvCache, KvLayout, decode_rows, encode_rows
from luce_core.ops.reference.paged_attention import SPEC

CASES = list(SPEC.cases())
CPU = torch.device("cpu")


def attend(
    pool: Provider,
    q: Tensor,
    batch: PackedBatch,
    cache: KvCache,
    layout: KvLayout,
    *,
    partials_bytes: int = 1 << 22,
    shared: bool | None = None,
) -> Tensor:
    """One native call on NaN-filled memory. What surrounds the output must stay NaN.

    `shared`: whether workers must have left partial results, the sign that they split a sequence.
    """
    rows, heads, dim = q.shape
    around = torch.full((rows, heads * dim + 24), float("nan"))
    out = around[:, 8 : 8 + heads * dim]
    partials = torch.full((partials_bytes // 4 + 1,), float("nan"))
    args = structs.AttentionArgs(
        tensor_rows(q, Domain.TOKENS),
        cache_view(cache.k, layout.k_type, layout.facts),
        cache_view(cache.v, layout.v_type, layout.facts),
        heads,
        dim**-0.5,
        tensor_rows(out, Domain.TOKENS),
        partials.data_ptr() if partials_bytes else None,
        partials_bytes,
    )
    native_batch = structs.Batch()
    fill_batch(native_batch, batch)
    pool.run(Op.ATTENTION, args, native_batch)
    assert partials[-1].isnan(), "wrote beyond the partial results"
    if shared is not None:
        assert (not partials.isnan().all()) == shared
    assert around[:, :8].isnan().all()
    assert around[:, 8 + heads * dim :].isnan().all()
    return out.reshape(rows, heads, dim).clone()


def dense(
    q: Tensor, case: PagedCase, layout: KvLayout, segment: int = 0
) -> Tensor:  # [rows, heads, D]
    """Softmax attention of one segment in float64 over what its cache holds."""
    keys, values = (
        decode_rows(encode_rows(rows[segment], kind), kind).double()
        for rows, kind in ((case.keys, layout.k_type), (case.values, layout.v_type))
    )
    group = q.shape[1] // layout.kv_heads
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("rhd,khd->hrk", q.double() * layout.head_dim**-0.5, keys)
    first = case.segments[segment].context
    seen = torch.arange(len(keys)) <= torch.arange(first, first + len(q))[:, None]
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hrk,khd->rhd", weights, values)


def layout_of(
    kv_heads: int = 2, dim: int = 64, block_size: int = 16, kind: str = "f16", v_kind: str = ""
) -> KvLayout:
    return KvLayout(
        kv_heads=kv_heads,
        head_dim=dim,
        block_size=block_size,
        k_type=kind,
        v_type=v_kind or kind,
    )


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_values_are_those_of_the_reference(
    case: OpCase, isa: str, pools: dict[int, Provider]
) -> None:
    q, batch, k_cache, v_cache = case.make(CaseMaker(CPU, torch.float32)).args
    layout = KvLayout(**{k: v for k, v in case.facts.items() if k not in ("heads", "scale")})
    expected = torch.empty(q.shape)
    SPEC.reference(q, batch, k_cache, v_cache, expected, **case.facts)
    for pool in pools.values():
        got = attend(pool, q, batch, KvCache(k_cache, v_cache), layout)
        torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dim", [7, 16, 24, 40, 64, 96, 128, 200, 256])
@pytest.mark.parametrize(("context", "rows"), [(0, 1), (255, 2), (256, 1), (700, 5), (0, 130)])
def test_any_head_size_is_within_rounding_of_float64(
    dim: int, context: int, rows: int, isa: str, pools: dict[int, Provider]
) -> None:
    layout = layout_of(dim=dim, kind="f32")
    case = CaseMaker(CPU, torch.float32, seed=dim).batch([Segment(context, rows)], layout)
    q = CaseMaker(CPU, torch.float32, seed=1).normal(rows, 6, dim)
    got = attend(pools[2], q, case.batch, case.filled_cache(), layout)
    expected = dense(q, case, layout)
    assert (got - expected).abs().max() <= 5e-6 * expected.abs().max()


@pytest.mark.parametrize("v_kind", CACHE_TYPES)
@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_every_pair_of_cache_types_is_within_rounding_of_float64(
    kind: str, v_kind: str, isa: str, pools: dict[int, Provider]
) -> None:
    layout = layout_of(dim=64, kind=kind, v_kind=v_kind)
    case = CaseMaker(CPU, torch.float32).batch([Segment(300, 3)], layout)
    q = CaseMaker(CPU, torch.float32, seed=1).normal(3, 6, 64)
    got = attend(pools[2], q, case.batch, case.filled_cache(), layout)
    expected = dense(q, case, layout)
    assert (got - expected).abs().max() <= 5e-6 * expected.abs().max()


@pytest.mark.parametrize("block_size", [1, 7, 16, 64, 300])
def test_bits_do_not_depend_on_where_the_blocks_are(
    block_size: int, isa: str, pools: dict[int, Provider]
) -> None:
    layout = layout_of(block_size=block_size)
    count = -(-600 // block_size)
    outputs = []
    for blocks in (list(range(count)), list(reversed(range(1, count + 1)))):
        maker = CaseMaker(CPU, torch.float32)
        case = maker.batch([Segment(590, 10)], layout, blocks=blocks)
        q = maker.normal(10, 6, 64)
        outputs.append(attend(pools[2], q, case.batch, case.filled_cache(), layout))
    assert torch.equal(*outputs)
    assert not outputs[0].isnan().any()


COMPANY = (
    Segment(0, 40, True),
    Segment(250, 70, True),
    Segment(0, 1),
    Segment(255, 1),
    Segment(256, 5),
    Segment(1000, 1),
    Segment(510, 8),
)


@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_a_segment_has_the_same_bits_alone_and_with_any_number_of_workers(
    kind: str, isa: str, pools: dict[int, Provider]
) -> None:
    layout = layout_of(kv_heads=3, kind=kind)
    maker = CaseMaker(CPU, torch.float32)
    case = maker.batch(COMPANY, layout)
    cache, q = case.filled_cache(), maker.columns(case.batch.rows, 9, 64)
    whole = attend(pools[1], q, case.batch, cache, layout, partials_bytes=0, shared=False)
    assert not whole.isnan().any()
    for workers, partials_bytes in ((1, 1 << 22), (2, 1 << 22), (3, 1 << 22), (2, 0), (3, 256)):
        again = attend(
            pools[workers],
            q,
            case.batch,
            cache,
            layout,
            partials_bytes=partials_bytes,
            shared=partials_bytes == 1 << 22,
        )
        assert torch.equal(again, whole), (workers, partials_bytes)
    for segment in range(len(COMPANY)):
        batch, rows = case.alone(segment)
        for pool in pools.values():
            assert torch.equal(attend(pool, q[rows], batch, cache, layout), whole[rows])


@pytest.mark.parametrize(
    ("kind", "dim", "heads"),
    [("q8_0", 32, 1), ("q8_0", 64, 7), ("f16", 64, 3), ("bf16", 80, 4), ("q4_0", 128, 7)],
)
@pytest.mark.parametrize("chunk", [1, 5, 16, 300])
def test_a_prompt_has_the_same_bits_in_any_chunks(
    chunk: int, kind: str, dim: int, heads: int, isa: str, pools: dict[int, Provider]
) -> None:
    """As prefill of `chunk` rows a step (1: as decode), on two workers, against one whole."""
    layout = layout_of(kv_heads=1, dim=dim, kind=kind)
    whole = CaseMaker(CPU, torch.float32).batch([Segment(0, 530, True)], layout)
    cache = whole.filled_cache()
    q = CaseMaker(CPU, torch.float32, seed=1).normal(530, heads, dim)
    expected = attend(pools[1], q, whole.batch, cache, layout)
    starts = [*range(0, 530, chunk), 530]
    for first, stop in pairwise(starts):
        if chunk == 1 and first % 7:
            continue
        piece = CaseMaker(CPU, torch.float32).batch(
            [Segment(first, stop - first, chunk > 1)], layout, blocks=whole._owned[0]
        )
        got = attend(pools[2], q[first:stop], piece.batch, cache, layout)
        assert torch.equal(got, expected[first:stop]), first


@pytest.mark.parametrize("lines", [1, 5, 50])
def test_bits_do_not_depend_on_how_much_scratch_workers_have(
    lines: int, isa: str, pools: dict[int, Provider], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down to the least that the library asks for, and with no byte beyond it touched."""
    layout = layout_of(dim=40, kind="bf16")
    maker = CaseMaker(CPU, torch.float32)
    case = maker.batch(COMPANY, layout)
    cache, q = case.filled_cache(), maker.normal(case.batch.rows, 6, 40)
    expected = attend(pools[2], q, case.batch, cache, layout)
    least = 4 * (67 * (40 + 16) + 256)
    monkeypatch.setattr(provider, "SCRATCH_BYTES", least + 4 * (lines - 1) * (3 * 56 + 256))
    small = Provider(native())
    small.set_threads(2)
    small.library.lk_pool_keep_all(small.pool, 1)
    assert torch.equal(attend(small, q, case.batch, cache, layout), expected)


def test_a_later_key_does_not_touch_a_row(isa: str, pools: dict[int, Provider]) -> None:
    layout = layout_of(kind="f32")
    case = CaseMaker(CPU, torch.float32).batch([Segment(30, 40, True)], layout)
    q = CaseMaker(CPU, torch.float32, seed=1).normal(40, 4, 64)
    clean = attend(pools[1], q, case.batch, case.filled_cache(), layout)
    case.keys[0][50], case.values[0][50] = float("nan"), float("inf")
    spoilt = attend(pools[1], q, case.batch, case.filled_cache(), layout)
    assert torch.equal(spoilt[:20], clean[:20])
    assert spoilt[20:].isnan().all()


def test_nan_stays_in_its_head(isa: str, pools: dict[int, Provider]) -> None:
    layout = layout_of(kind="f32")
    case = CaseMaker(CPU, torch.float32).batch([Segment(300, 4)], layout)
    cache, q = case.filled_cache(), CaseMaker(CPU, torch.float32, seed=1).normal(4, 4, 64)
    clean = attend(pools[2], q, case.batch, cache, layout)
    q[2, 1, 5] = float("nan")
    spoilt = attend(pools[2], q, case.batch, cache, layout)
    assert spoilt[2, 1].isnan().all()
    spoilt[2, 1] = clean[2, 1]
    assert torch.equal(spoilt, clean)


def test_scores_far_apart_neither_overflow_nor_vanish(isa: str, pools: dict[int, Provider]) -> None:
    """One key outweighs all others by more than float32 can express, in the first or last part."""
    layout = layout_of(kv_heads=1, kind="f32")
    for loud in (3, 599):
        case = CaseMaker(CPU, torch.float32).batch([Segment(599, 1)], layout)
        case.keys[0][loud] *= 1e4
        cache = case.filled_cache()
        q = case.keys[0][loud].sign()[None]
        got = attend(pools[2], q, case.batch, cache, layout)
        torch.testing.assert_close(got[0], case.values[0][loud], rtol=1e-6, atol=1e-6)


def test_padding_segments_read_the_null_block_only(isa: str, pools: dict[int, Provider]) -> None:
    layout = layout_of()
    maker = CaseMaker(CPU, torch.float32)
    case = maker.batch([Segment(20, 1)], layout, null_segments=3)
    q = maker.normal(4, 4, 64)
    got = attend(pools[2], q, case.batch, case.filled_cache(), layout)
    assert not got[0].isnan().any()
    assert got[1:].isnan().all(), "the case fills the null block with NaN"


def test_the_eager_op_shares_long_sequences(
    pools: dict[int, Provider], monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layout_of()
    case = CaseMaker(CPU, torch.float32).batch([Segment(900, 1)], layout)
    cache, q = case.filled_cache(), CaseMaker(CPU, torch.float32, seed=1).normal(1, 6, 64)
    expected = attend(pools[1], q, case.batch, cache, layout)
    monkeypatch.setattr(eager, "provider", lambda: pools[2])
    got = torch.full_like(q, float("nan"))
    facts = {**layout.facts, "heads": 6, "scale": 64**-0.5}
    eager.paged_attention(q, case.batch, cache.k, cache.v, got, **facts)
    assert torch.equal(got, expected)
