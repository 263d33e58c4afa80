"""A gated feed-forward layer as one record has the bits of its ops one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from luce_kernels_cpu.fuse import NO_FUSION, Fusion, fuse
from luce_kernels_cpu.graph import build_graph
from luce_kernels_cpu.graph_testing import LAYOUT, WIDTH, Forward, Ops, as_tuple, recorded
from luce_kernels_cpu.recorder import compile_recording
from luce_kernels_cpu.structs import Op

from luce_core.ops.cases import Segment

# Less than a worker, odd numbers, one group of rows and several.
ROWS = (1, 2, 5, 16, 33, 64, 150)


def feed(
    ops: Ops,
    gate: str = "Q4_0",
    up: str = "Q4_0",
    down: str = "Q8_0",
    *,
    inner: int = 160,
    biased: bool = False,
    limit: float | None = None,
) -> Forward:
    gates = ops.linear(inner, WIDTH, gate, biased=biased)
    ups = ops.linear(inner, WIDTH, up, biased=biased)
    downs = ops.linear(WIDTH, inner, down)
    swiglu = ops.binder.bind("swiglu", limit=limit)
    norm = ops.norm(WIDTH)

    def forward(batch: Any) -> Any:
        x = ops.embed(batch.token_ids)
        y = norm(x)
        return ops.add(x, downs(swiglu(gates(y), ups(y))))

    return forward


def check(make: Callable[[Ops], Forward], *, threads: int = 2, rows: tuple[int, ...] = ROWS) -> Any:
    """The names of the fused records, once their results are those of the plain ones."""
    ops = Ops(threads)
    forward = make(ops)
    fused = compile_recording(recorded(forward, rows=max(rows)), Fusion())
    plain = compile_recording(recorded(forward, rows=max(rows)), NO_FUSION)
    for count in rows:
        batch = ops.maker.batch((Segment(0, count, True),), LAYOUT).batch
        batch.token_ids.copy_(ops.maker.integers(0, 64, batch.rows))
        for mine, theirs in zip(as_tuple(fused(batch)), as_tuple(plain(batch)), strict=True):
            assert torch.equal(mine, theirs), count
            assert not mine.isnan().any()
    return fused.names


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    "types",
    [("Q4_0", "Q4_0"), ("Q4_1", "Q8_0"), ("F16", "Q5_1"), ("BF16", "F32"), ("MXFP4", "IQ4_NL")],
)
def test_no_bit_changes(isa: str, threads: int, types: tuple[str, str]) -> None:
    names = check(lambda ops: feed(ops, *types), threads=threads)
    assert names.count("gate_up") == 1
    assert "swiglu" not in names


@pytest.mark.parametrize("inner", [8, 48, 100, 416])
@pytest.mark.parametrize("limit", [None, 0.25])
def test_no_bit_changes_of_any_width(isa: str, inner: int, limit: float | None) -> None:
    """Widths of no whole quant blocks and of no whole tiles are read as floats."""
    names = check(
        lambda ops: feed(ops, down="F16", inner=inner, biased=True, limit=limit), rows=(1, 3, 40)
    )
    assert "gate_up" in names


def test_floats_are_made_if_they_are_read(isa: str) -> None:
    def make(ops: Ops) -> Forward:
        gate, up = ops.linear(64, WIDTH), ops.linear(64, WIDTH, "Q8_0")
        down, plain = ops.linear(8, 64), ops.linear(8, 64, "F16")

        def forward(batch: Any) -> Any:
            x = ops.embed(batch.token_ids)
            once, twice = ops.swiglu(gate(x), up(x)), ops.swiglu(up(x), gate(x))
            return down(once), down(twice), plain(twice)

        return forward

    assert check(make).count("gate_up") == 2
    ops = Ops()
    graph = build_graph(recorded(make(ops)))
    fuse(graph, Fusion())
    fused = [record for record in graph.records if record.op is Op.GATE_UP]
    assert [record.floats for record in fused] == [False, True]


def gate_read_twice(ops: Ops) -> Forward:
    gate, up = ops.linear(64, WIDTH), ops.linear(64, WIDTH)

    def forward(batch: Any) -> Any:
        x = ops.embed(batch.token_ids)
        gated = gate(x)
        return gated, ops.swiglu(gated, up(x))

    return forward


def of_different_rows(ops: Ops) -> Forward:
    gate, up, norm = ops.linear(64, WIDTH), ops.linear(64, WIDTH), ops.norm(WIDTH)

    def forward(batch: Any) -> Any:
        x = ops.embed(batch.token_ids)
        return ops.swiglu(gate(x), up(norm(x)))

    return forward


def halves_of_one_product(ops: Ops) -> Forward:
    both = ops.linear(2 * WIDTH, WIDTH)

    def forward(batch: Any) -> Any:
        gate, up = both(ops.embed(batch.token_ids)).split(WIDTH, dim=-1)
        return ops.swiglu(gate, up)

    return forward


@pytest.mark.parametrize(
    "make", [gate_read_twice, of_different_rows, halves_of_one_product], ids=lambda m: m.__name__
)
def test_what_does_not_fit_stays_as_it_is(make: Callable[[Ops], Forward]) -> None:
    names = check(make, rows=(1, 7))
    assert "swiglu" in names
    assert "gate_up" not in names
