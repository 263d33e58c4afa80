"""Projections with what their heads go through until attention, as one record: bits and limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from luce_kernels_cpu.fuse import NO_FUSION, Fusion
from luce_kernels_cpu.graph_testing import WIDTH, Forward, Ops, recorded
from luce_kernels_cpu.recorder import NativeProgram, compile_recording

from luce_core.ops.cases import Segment
from luce_core.ops.kv_layout import KvCache, KvLayout

# Decode rows and drafts of one group of rows; a prompt of several groups beside them.
STEPS = (
    (Segment(20, 1),),
    (Segment(0, 9, True), Segment(20, 1), Segment(5, 3)),
    (Segment(0, 150, True), Segment(7, 2)),
)
MOST_ROWS = 160


def projections(
    ops: Ops,
    types: tuple[str, str, str] = ("Q4_0", "Q4_0", "Q4_0"),
    *,
    layout: KvLayout,
    heads: int = 6,
    rotary: int | None = None,
    interleaved: bool = False,
    normed: bool = False,
    biased: bool = False,
) -> tuple[Forward, KvCache]:
    """Attention over a cache, of heads that were projected, normed, turned and stored."""
    kv_heads, dim = layout.kv_heads, layout.head_dim
    cache = layout.allocate(40)
    counts = (heads, kv_heads, kv_heads)
    q, k, v = (
        ops.linear(n * dim, WIDTH, qtype, biased=biased)
        for n, qtype in zip(counts, types, strict=True)
    )
    q_norm, k_norm = (ops.norm(dim), ops.norm(dim)) if normed else (lambda x: x, lambda x: x)
    rope = ops.binder.bind("rope", rotary_dim=rotary or dim, interleaved=interleaved, theta=1e4)
    write = ops.binder.bind("kv_write", **layout.facts)
    attend = ops.binder.bind("paged_attention", heads=heads, scale=0.2, **layout.facts)

    def forward(batch: Any) -> Any:
        x = ops.embed(batch.token_ids)
        queries = rope(q_norm(q(x).view(-1, heads, dim)), batch.positions)
        keys = rope(k_norm(k(x).view(-1, kv_heads, dim)), batch.positions)
        write(keys, v(x).view(-1, kv_heads, dim), batch.kv_rows, cache.k, cache.v)
        return attend(queries, batch, cache.k, cache.v)

    return forward, cache


def check(threads: int, layout: KvLayout, **how: Any) -> NativeProgram:
    """The fused program, once attention and the caches have the bits of the plain one."""
    ops = Ops(threads)
    forward, cache = projections(ops, layout=layout, **how)
    fused = compile_recording(recorded(forward, rows=MOST_ROWS))
    plain = compile_recording(recorded(forward, rows=MOST_ROWS), NO_FUSION)
    for segments in STEPS:
        batch = ops.maker.batch(segments, layout).batch
        batch.token_ids.copy_(ops.maker.integers(0, 64, batch.rows))
        found = []
        for program in (fused, plain):
            for each in (cache.k, cache.v):
                each.view(torch.uint8).fill_(0)
            out = program(batch).clone()
            found.append(
                (out, cache.k.view(torch.uint8).clone(), cache.v.view(torch.uint8).clone())
            )
        assert not found[0][0].isnan().any()
        for mine, theirs in zip(*found, strict=True):
            assert torch.equal(mine, theirs), segments
    return fused


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("types", "how"),
    [
        (("Q4_0", "Q4_0", "Q4_0"), {"interleaved": True}),
        (("Q4_1", "Q8_0", "F16"), {"normed": True}),
        (("F32", "Q5_0", "Q5_1"), {"biased": True, "rotary": 20}),
        (("BF16", "BF16", "IQ4_NL"), {"interleaved": True, "normed": True, "rotary": 12}),
    ],
)
def test_no_bit_changes(isa: str, threads: int, types: Any, how: Any) -> None:
    layout = KvLayout(kv_heads=2, head_dim=32, block_size=16)
    assert "project_heads" in check(threads, layout, types=types, **how).names


@pytest.mark.parametrize("cache", ["f32", "bf16", "q8_0", "q4_0"])
def test_every_kind_of_cache_is_written_as_before(cache: str) -> None:
    layout = KvLayout(kv_heads=1, head_dim=64, block_size=16, k_type=cache, v_type=cache)
    assert "project_heads" in check(2, layout, normed=True, heads=3).names


@pytest.mark.parametrize(("dim", "kv_heads"), [(16, 3), (48, 1), (528, 1)])
def test_heads_of_any_whole_tiles(isa: str, dim: int, kv_heads: int) -> None:
    """More workers than tiles, heads that several workers share, more pairs than are turned at
    once."""
    layout = KvLayout(kv_heads=kv_heads, head_dim=dim, block_size=16)
    check(3, layout, heads=kv_heads, interleaved=True, normed=True)
    check(3, layout, heads=kv_heads)


def test_heads_of_no_whole_tiles_stay_as_they_are() -> None:
    layout = KvLayout(kv_heads=2, head_dim=24, block_size=16)
    names = check(2, layout).names
    assert "project_heads" not in names
    assert "rope_write" in names


def two_ropes(ops: Ops, layout: KvLayout, theta: float, other: float) -> Forward:
    cache = layout.allocate(40)
    q, k, v = (ops.linear(n, WIDTH) for n in (96, 32, 32))
    ropes = [
        ops.binder.bind("rope", rotary_dim=32, interleaved=False, theta=each)
        for each in (theta, other)
    ]
    write = ops.binder.bind("kv_write", **layout.facts)
    attend = ops.binder.bind("paged_attention", heads=3, scale=0.2, **layout.facts)

    def forward(batch: Any) -> Any:
        x = ops.embed(batch.token_ids)
        queries = ropes[0](q(x).view(-1, 3, 32), batch.positions)
        keys = ropes[1](k(x).view(-1, 1, 32), batch.positions)
        write(keys, v(x).view(-1, 1, 32), batch.kv_rows, cache.k, cache.v)
        return attend(queries, batch, cache.k, cache.v)

    return forward


@pytest.mark.parametrize(("other", "fits"), [(1e4, True), (1e5, False)])
def test_queries_and_keys_must_turn_alike(other: float, fits: bool) -> None:
    layout = KvLayout(kv_heads=1, head_dim=32, block_size=16)
    names = compile_recording(recorded(two_ropes(Ops(), layout, 1e4, other))).names
    assert ("project_heads" in names) is fits


def test_layers_share_what_they_turn_by() -> None:
    ops = Ops()
    layout = KvLayout(kv_heads=1, head_dim=32, block_size=16)
    layers = [two_ropes(ops, layout, 1e4, 1e4) for _ in range(3)]
    names = compile_recording(recorded(lambda batch: tuple(each(batch) for each in layers))).names
    assert names.count("project_heads") == 3
    assert names.count("turns") == 1


def queries_returned_unturned(ops: Ops, layout: KvLayout) -> Forward:
    cache = layout.allocate(40)
    q, k, v = (ops.linear(n, WIDTH) for n in (96, 32, 32))
    rope = ops.binder.bind("rope", rotary_dim=32, interleaved=False, theta=1e4)
    write = ops.binder.bind("kv_write", **layout.facts)
    attend = ops.binder.bind("paged_attention", heads=3, scale=0.2, **layout.facts)

    def forward(batch: Any) -> Any:
        x = ops.embed(batch.token_ids)
        raw = q(x)
        queries = rope(raw.view(-1, 3, 32), batch.positions)
        keys = rope(k(x).view(-1, 1, 32), batch.positions)
        write(keys, v(x).view(-1, 1, 32), batch.kv_rows, cache.k, cache.v)
        return attend(queries, batch, cache.k, cache.v), raw

    return forward


def parts_of_one_product(ops: Ops, layout: KvLayout) -> Forward:
    cache = layout.allocate(40)
    every = ops.linear(160, WIDTH)
    rope = ops.binder.bind("rope", rotary_dim=32, interleaved=False, theta=1e4)
    write = ops.binder.bind("kv_write", **layout.facts)
    attend = ops.binder.bind("paged_attention", heads=3, scale=0.2, **layout.facts)

    def forward(batch: Any) -> Any:
        q, k, v = every(ops.embed(batch.token_ids)).split([96, 32, 32], dim=-1)
        queries = rope(q.view(-1, 3, 32), batch.positions)
        keys = rope(k.view(-1, 1, 32), batch.positions)
        write(keys, v.view(-1, 1, 32), batch.kv_rows, cache.k, cache.v)
        return attend(queries, batch, cache.k, cache.v)

    return forward


@pytest.mark.parametrize(
    "make", [queries_returned_unturned, parts_of_one_product], ids=lambda make: make.__name__
)
def test_products_that_others_read_stay_as_they_are(
    make: Callable[[Ops, KvLayout], Forward],
) -> None:
    layout = KvLayout(kv_heads=1, head_dim=32, block_size=16)
    forward = make(Ops(), layout)
    names = compile_recording(recorded(forward)).names
    assert "project_heads" not in names
    assert "rope_write" in names
    plain = compile_recording(recorded(forward), replace(Fusion(), heads=False)).names
    assert "rope" in plain
