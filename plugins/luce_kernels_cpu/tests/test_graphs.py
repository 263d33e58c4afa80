"""Forward passes that no shipped model has, replayed with every pass: same bits as op by op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from luce_kernels_cpu.fuse import NO_FUSION, Fusion, fuse
from luce_kernels_cpu.graph import build_graph
from luce_kernels_cpu.graph_testing import LAYOUT, WIDTH, Forward, Ops, as_tuple, recorded
from luce_kernels_cpu.recorder import compile_recording
from luce_kernels_cpu.schedule import schedule
from luce_kernels_cpu.structs import Op

from luce_core.errors import StepFault
from luce_core.ops.cases import Segment
from luce_core.ops.record import RecordingRefused

SEGMENTS = (Segment(0, 9, True), Segment(20, 1), Segment(5, 3))


def sum_read_twice(ops: Ops) -> Forward:
    """A matmul's output is added, and read again: it must not vanish into the residual."""
    project = ops.linear(WIDTH, WIDTH)

    def forward(batch: Any) -> Any:
        x = ops.embed(batch.token_ids)
        y = project(x)
        return ops.add(ops.add(x, y), y)

    return forward


def sum_of_two_products(ops: Ops) -> Forward:
    first, second = ops.linear(WIDTH, WIDTH), ops.linear(WIDTH, WIDTH, "F16")

    def forward(batch: Any) -> Any:
        x = ops.embed(batch.token_ids)
        return ops.add(first(x), second(x))

    return forward


def product_added_to_itself(ops: Ops) -> Forward:
    project = ops.linear(WIDTH, WIDTH)

    def forward(batch: Any) -> Any:
        y = project(ops.embed(batch.token_ids))
        return ops.add(y, y)

    return forward


def product_returned_and_added(ops: Ops) -> Forward:
    project = ops.linear(WIDTH, WIDTH)

    def forward(batch: Any) -> Any:
        x = ops.embed(batch.token_ids)
        y = project(x)
        return y, ops.add(x, y)

    return forward


def columns_of_a_wide_product(ops: Ops) -> Forward:
    """Parts of rows feed norms, matmuls and sums, whose int8 forms must not be mixed up."""
    wide, left, right = ops.linear(3 * WIDTH, WIDTH), ops.linear(8, WIDTH), ops.linear(8, WIDTH)
    heads, rows = ops.norm(32), ops.norm(WIDTH)

    def forward(batch: Any) -> Any:
        a, b, c = wide(ops.embed(batch.token_ids)).split(WIDTH, dim=-1)
        normed = heads(b.view(-1, 3, 32)).flatten(1)
        gated = ops.swiglu(a, c)
        return left(a), right(b), right(normed), left(rows(c)), ops.add(gated, normed)[:, 7:40]

    return forward


def int8_forms_of_two_kinds(ops: Ops) -> Forward:
    """The same rows are read with a scale per 32 values and with one per 256, which the norm of
    heads cannot make."""
    wide, rows, heads = ops.linear(512, WIDTH), ops.norm(256), ops.norm(32)
    kinds = [ops.linear(8, 256, qtype) for qtype in ("Q4_K", "Q4_0", "Q6_K", "Q8_0")]

    def forward(batch: Any) -> Any:
        a, b = wide(ops.embed(batch.token_ids)).split(256, dim=-1)
        normed, by_head = rows(a), heads(b.view(-1, 8, 32)).flatten(1)
        gated = ops.swiglu(a, b)
        return tuple(kind(x) for x in (normed, by_head, gated) for kind in kinds)

    return forward


def best_tokens(ops: Ops) -> Forward:
    head = ops.linear(64, WIDTH)

    def forward(batch: Any) -> Any:
        logits = head(ops.gather(ops.embed(batch.token_ids), batch.logit_rows))
        return ops.greedy(logits), logits

    return forward


def part_of_a_product_added(ops: Ops) -> Forward:
    wide, narrow = ops.linear(2 * WIDTH, WIDTH), ops.linear(8, 64)
    rows = ops.norm(WIDTH)

    def forward(batch: Any) -> Any:
        x = ops.embed(batch.token_ids)
        return ops.add(wide(x)[:, WIDTH:], x), narrow(rows(x)[:, 32:])

    return forward


def a_cache_written_again(ops: Ops) -> Forward:
    """A later write to a cache must wait for what reads it."""
    cache = LAYOUT.allocate(40)
    write = ops.binder.bind("kv_write", **LAYOUT.facts)
    attend = ops.binder.bind("paged_attention", heads=3, scale=0.2, **LAYOUT.facts)
    key, other_key = ops.linear(32, WIDTH), ops.linear(32, WIDTH)

    def forward(batch: Any) -> Any:
        x = ops.embed(batch.token_ids)
        k, other = key(x).view(-1, 1, 32), other_key(x).view(-1, 1, 32)
        q = x.view(-1, 3, 32)
        write(k, k, batch.kv_rows, cache.k, cache.v)
        first = attend(q, batch, cache.k, cache.v)
        write(other, other, batch.kv_rows, cache.k, cache.v)
        return first, attend(q, batch, cache.k, cache.v)

    return forward


class Heads:
    """Projections, turns and attention over a cache of one KV head of 32."""

    def __init__(self, ops: Ops) -> None:
        self.cache = LAYOUT.allocate(40)
        self.q, self.k, self.v = (ops.linear(n, WIDTH) for n in (WIDTH, 32, 32))
        self.rope = ops.binder.bind("rope", rotary_dim=32, interleaved=False, theta=1e4)
        self.write = ops.binder.bind("kv_write", **LAYOUT.facts)
        self.attend = ops.binder.bind("paged_attention", heads=3, scale=0.2, **LAYOUT.facts)
        self.out = ops.linear(WIDTH, WIDTH)

    def project(self, x: Any) -> tuple[Any, Any, Any]:
        return self.q(x).view(-1, 3, 32), self.k(x).view(-1, 1, 32), self.v(x).view(-1, 1, 32)

    def attend_to(self, q: Any, k: Any, v: Any, batch: Any) -> Any:
        self.write(k, v, batch.kv_rows, self.cache.k, self.cache.v)
        return self.attend(q, batch, self.cache.k, self.cache.v)

    def attended(self, q: Any, k: Any, v: Any, batch: Any) -> Any:
        return self.out(self.attend_to(q, k, v, batch).flatten(1))


def heads_normed_and_turned(ops: Ops) -> Forward:
    heads, q_norm, k_norm = Heads(ops), ops.norm(32), ops.norm(32)

    def forward(batch: Any) -> Any:
        q, k, v = heads.project(ops.embed(batch.token_ids))
        q, k = heads.rope(q_norm(q), batch.positions), heads.rope(k_norm(k), batch.positions)
        return heads.attended(q, k, v, batch)

    return forward


def rows_normed_then_heads_turned(ops: Ops) -> Forward:
    """A norm of whole rows is no norm of heads."""
    heads, norm = Heads(ops), ops.norm(WIDTH)

    def forward(batch: Any) -> Any:
        q, k, v = heads.project(ops.embed(batch.token_ids))
        q = norm(q.flatten(1)).view(-1, 3, 32)
        q, k = heads.rope(q, batch.positions), heads.rope(k, batch.positions)
        return heads.attended(q, k, v, batch)

    return forward


def turned_keys_returned(ops: Ops) -> Forward:
    heads = Heads(ops)

    def forward(batch: Any) -> Any:
        q, k, v = heads.project(ops.embed(batch.token_ids))
        q, k = heads.rope(q, batch.positions), heads.rope(k, batch.positions)
        return heads.attended(q, k, v, batch), k

    return forward


def queries_turned_after_the_write(ops: Ops) -> Forward:
    heads = Heads(ops)

    def forward(batch: Any) -> Any:
        q, k, v = heads.project(ops.embed(batch.token_ids))
        k = heads.rope(k, batch.positions)
        heads.write(k, v, batch.kv_rows, heads.cache.k, heads.cache.v)
        q = heads.rope(q, batch.positions)
        return heads.attend(q, batch, heads.cache.k, heads.cache.v)

    return forward


def a_cache_of_turned_heads_written_again(ops: Ops) -> Forward:
    """Neither write needs anything of the other's attention but the cache."""
    heads = Heads(ops)

    def forward(batch: Any) -> Any:
        q, k, v = heads.project(ops.embed(batch.token_ids))
        other_q, other_k = heads.rope(q, batch.positions), heads.rope(k, batch.positions)
        q, k = heads.rope(q, batch.positions), heads.rope(k, batch.positions)
        return heads.attend_to(q, k, v, batch), heads.attend_to(other_q, other_k, v, batch)

    return forward


def normed_groups_of_no_whole_blocks(ops: Ops) -> Forward:
    """Groups of 48 values are not made of blocks of 32: the int8 form needs its own record."""
    norm, project = ops.norm(48), ops.linear(8, WIDTH)

    def forward(batch: Any) -> Any:
        return project(norm(ops.embed(batch.token_ids).view(-1, 2, 48)).flatten(1))

    return forward


MAKERS = [
    sum_read_twice,
    sum_of_two_products,
    product_added_to_itself,
    product_returned_and_added,
    columns_of_a_wide_product,
    int8_forms_of_two_kinds,
    best_tokens,
    part_of_a_product_added,
    a_cache_written_again,
    heads_normed_and_turned,
    rows_normed_then_heads_turned,
    turned_keys_returned,
    queries_turned_after_the_write,
    a_cache_of_turned_heads_written_again,
    normed_groups_of_no_whole_blocks,
]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("fusion", [Fusion(), NO_FUSION], ids=["fused", "plain"])
def test_replay_has_the_bits_of_the_ops(make: Callable[[Ops], Forward], fusion: Fusion) -> None:
    ops = Ops()
    forward = make(ops)
    case = ops.maker.batch(SEGMENTS, LAYOUT, blocks=list(range(2, 12)))
    case.batch.token_ids.copy_(ops.maker.integers(0, 64, case.batch.rows))
    expected = forward(case.batch)
    program = compile_recording(recorded(forward), fusion)
    for _ in range(3):
        got = program(case.batch)
        for mine, theirs in zip(as_tuple(got), as_tuple(expected), strict=True):
            assert mine.dtype is theirs.dtype
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("make", "write"),
    [
        (a_cache_written_again, Op.KV_WRITE),
        (a_cache_of_turned_heads_written_again, Op.ROPE_WRITE),
    ],
)
def test_a_cache_is_written_and_read_in_turn(make: Callable[[Ops], Forward], write: Op) -> None:
    """Not left to the luck of a race: each of the four accesses ends at a barrier."""
    graph = build_graph(recorded(make(Ops())))
    fuse(graph, Fusion())
    barriers = schedule(graph, overlap=True).barriers
    found = [
        (record.op, barrier)
        for record, barrier in zip(graph.records, barriers, strict=True)
        if record.caches
    ]
    assert [op for op, _ in found] == [write, Op.ATTENTION, write, Op.ATTENTION]
    assert [barrier for _, barrier in found] == [True, True, True, False]


def test_rows_that_only_products_read_are_made_as_int8_alone() -> None:
    ops = Ops()
    norm, product, plain = ops.norm(WIDTH), ops.linear(8, WIDTH), ops.linear(8, WIDTH, "F16")

    def forward(batch: Any) -> Any:
        x = ops.embed(batch.token_ids)
        once, twice, returned = norm(x), norm(x), norm(x)
        return product(once), product(twice), plain(twice), product(returned), returned

    graph = build_graph(recorded(forward))
    fuse(graph, Fusion())
    norms = [record for record in graph.records if record.op is Op.NORM]
    assert [record.floats for record in norms] == [False, True, True]
    assert set(schedule(graph, overlap=True).offsets).isdisjoint({norms[0].out.value})


@pytest.mark.parametrize(
    ("make", "between"),
    [
        (heads_normed_and_turned, ["rope_write"]),
        (rows_normed_then_heads_turned, ["norm", "rope_write"]),
        (turned_keys_returned, ["rope", "rope", "kv_write"]),
        (queries_turned_after_the_write, ["rope", "kv_write", "rope"]),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_heads_are_turned_and_stored_at_once_where_nobody_looks_between(
    make: Callable[[Ops], Forward], between: list[str]
) -> None:
    names = compile_recording(recorded(make(Ops())), Fusion(projections=False)).names
    before = names[: names.index("attention")]
    products = [place for place, name in enumerate(before) if name == "matmul"]
    assert list(before[products[-1] + 1 :]) == between


def test_a_step_without_logits_gives_none() -> None:
    ops = Ops()
    program = compile_recording(recorded(best_tokens(ops)))
    case = ops.maker.batch((Segment(0, 4, True),), LAYOUT)
    batch = case.batch
    fields = {name: getattr(batch, name) for name in type(batch).__slots__}
    silent = type(batch)(**{**fields, "logit_rows": batch.logit_rows[:0], "logits": 0})
    tokens, logits = program(silent)
    assert tokens.shape == (0,)
    assert logits.shape == (0, 64)


def test_positions_from_elsewhere_are_refused() -> None:
    """The library reads them from the batch, so nothing else may be passed."""
    ops = Ops()
    rope = ops.binder.bind("rope", rotary_dim=32, interleaved=False, theta=1e4)

    def forward(batch: Any) -> Any:
        return rope(ops.embed(batch.token_ids).view(-1, 3, 32), batch.kv_rows)

    with pytest.raises(RecordingRefused, match="rope: it must read the batch's positions"):
        compile_recording(recorded(forward))


def test_a_step_that_is_refused_leaves_the_program_usable() -> None:
    ops = Ops()
    program = compile_recording(recorded(best_tokens(ops)))
    case = ops.maker.batch(SEGMENTS, LAYOUT)
    expected = program(case.batch)[1].clone()
    case.batch.token_ids[0] = 64
    with pytest.raises(StepFault, match="token_ids"):
        program(case.batch)
    case.batch.token_ids[0] = 0
    assert torch.equal(program(case.batch)[1], expected)
