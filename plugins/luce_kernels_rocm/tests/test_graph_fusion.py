"""What a step does in one launch instead of several: which calls that concerns, that what somebody
else reads is still written, and that no bit changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from luce_kernels_rocm import configs
from luce_kernels_rocm.graphs.fuse import fuse
from luce_kernels_rocm.graphs.graph import Graph, Kind, build_graph
from luce_kernels_rocm.graphs.places import place
from luce_kernels_rocm.graphs.program import compile_recording
from luce_kernels_rocm.graphs.remembered import Remembered
from luce_kernels_rocm.graphs.steps import Steps
from luce_kernels_rocm.interpreter import register_interpreted
from luce_llama.engine import LlamaEngine
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.device import Device
from luce_core.engine import EngineLimits, LoadContext
from luce_core.ops.cases import CaseMaker, Segment
from luce_core.ops.core_ops import core_registry
from luce_core.ops.kv_layout import KvLayout
from luce_core.ops.record import Recording, record
from luce_core.ops.registry import OpBinder, OpRegistry
from luce_core.ops.spec import Rows
from luce_core.sampling.sampler import Sampler
from luce_core.testing.driver import Driver
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

CPU = Device("cpu")
MOST = {"max_rows": 16, "max_logits": 16, "max_segments": 4, "max_blocks": 4}
MOST_ROWS = {Rows.TOKENS: 16, Rows.LOGITS: 16, Rows.SEGMENTS: 4}
WIDTH, INNER = 64, 96

Forward = Callable[[Any], Any]


class Parts:
    """Bound ops of a layer that is all of a model."""

    def __init__(self, ops: OpBinder) -> None:
        maker = CaseMaker("cpu", torch.float16, seed=3)
        self.embed = ops.embedding(maker.weight(50, WIDTH, "Q4_0"))
        self.norm = ops.bind("rms_norm", weights=(maker.normal32(WIDTH),), eps=1e-5)
        self.gate = ops.linear(maker.weight(INNER, WIDTH, "Q4_0"))
        self.up = ops.linear(maker.weight(INNER, WIDTH, "Q4_0"))
        self.biased = ops.linear(maker.weight(INNER, WIDTH, "Q4_0"), bias=maker.normal32(INNER))
        self.square = ops.linear(maker.weight(WIDTH, WIDTH, "Q4_0"))
        self.down = ops.linear(maker.weight(WIDTH, INNER, "Q4_0"))
        self.swiglu = ops.bind("swiglu")
        self.add = ops.bind("add")


def interpreted() -> OpRegistry:
    registry = core_registry()
    register_interpreted(registry.register_kernel)
    return registry


@pytest.fixture(scope="module")
def parts() -> Parts:
    return Parts(interpreted().binder(CPU, torch.float16))


def batch_of(*rows: int) -> PackedBatch:
    maker = CaseMaker("cpu", torch.float16, seed=5)
    layout = KvLayout(kv_heads=1, head_dim=32, block_size=16)
    batch = maker.batch([Segment(2, count) for count in rows], layout).batch
    batch.token_ids.copy_(maker.integers(0, 50, batch.rows))
    return batch


def fused(recording: Recording, *, few_rows: bool = True) -> Graph:
    graph = build_graph(recording)
    fuse(graph, few_rows=few_rows)
    return graph


def kinds(forward: Forward, *, few_rows: bool = True) -> Counter[Kind]:
    """What forward does besides calls of single ops."""
    graph = fused(record(forward, **MOST), few_rows=few_rows)
    return Counter(node.kind for node in graph.nodes if node.kind is not Kind.CALL)


def check(forward: Forward, *rows: int) -> None:
    """Fused steps make the bits of eager ones, in memory that held NaN."""
    steps = Steps(record(forward, **MOST), max_segments=4, device=torch.device("cpu"))
    batch = batch_of(*rows)
    for nodes in (steps._few, steps._many):
        nodes._memory.fill_(0xFF)
    wanted, got = forward(batch), steps(batch)
    for one, other in zip(_tuple(got), _tuple(wanted), strict=True):
        assert torch.equal(one, other)


def _tuple(found: Any) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def feed_forward(parts: Parts) -> Forward:
    def forward(batch: Any) -> Any:
        x = parts.embed(batch.token_ids)
        normed = parts.norm(x)
        x = parts.add(x, parts.down(parts.swiglu(parts.gate(normed), parts.up(normed))))
        return parts.square(parts.norm(x))

    return forward


@pytest.mark.parametrize("rows", [(1,), (1, 4, 3), (9,)])
def test_a_feed_forward_layer_makes_the_same_bits(parts: Parts, rows: tuple[int, ...]) -> None:
    check(feed_forward(parts), *rows)


def test_few_rows_are_fused_further_than_many(parts: Parts) -> None:
    forward = feed_forward(parts)
    # A residual behind down, norms in front of square and of gate and up.
    assert kinds(forward) == {Kind.PRODUCT: 2, Kind.GATE_UP: 1}
    assert kinds(forward, few_rows=False) == {Kind.PRODUCT: 1}


def test_large_products_have_no_norm_in_front(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("luce_kernels_rocm.graphs.fuse.NORM_AGAIN_BYTES", WIDTH * 4)
    assert kinds(feed_forward(parts)) == {Kind.PRODUCT: 1, Kind.GATE_UP: 1}
    graph = fused(record(feed_forward(parts), **MOST))
    assert not any("norm" in node.ops for node in graph.nodes)
    assert configs.NORM_AGAIN_BYTES > WIDTH * 4


def test_a_sum_that_others_read_is_written_beside_its_norm(parts: Parts) -> None:
    def forward(batch: Any) -> Any:
        x = parts.embed(batch.token_ids)
        total = parts.add(x, parts.norm(x))
        return parts.add(total, parts.norm(total)), total

    assert kinds(forward) == {Kind.ADD_NORM: 1}
    check(forward, 2)


def test_a_product_that_others_read_is_written_before_its_residual(parts: Parts) -> None:
    def returned(batch: Any) -> Any:
        x = parts.embed(batch.token_ids)
        product = parts.square(x)
        return parts.add(x, product), product

    def read_twice(batch: Any) -> Any:
        product = parts.square(parts.embed(batch.token_ids))
        return parts.add(product, parts.norm(product))

    for forward in (returned, read_twice):
        assert not kinds(forward)
        check(forward, 2)


def test_gate_and_up_that_others_read_are_written(parts: Parts) -> None:
    def gate_is_returned(batch: Any) -> Any:
        x = parts.embed(batch.token_ids)
        gate = parts.gate(x)
        return parts.swiglu(gate, parts.up(x)), gate

    def other_rows(batch: Any) -> Any:
        x = parts.embed(batch.token_ids)
        return parts.swiglu(parts.gate(x), parts.up(parts.square(x)))

    def with_a_bias(batch: Any) -> Any:
        x = parts.embed(batch.token_ids)
        return parts.swiglu(parts.biased(x), parts.up(x))

    for forward in (gate_is_returned, other_rows, with_a_bias):
        assert Kind.GATE_UP not in kinds(forward)
        check(forward, 2)


def test_a_norm_that_others_read_stays(parts: Parts) -> None:
    def returned(batch: Any) -> Any:
        normed = parts.norm(parts.embed(batch.token_ids))
        return parts.square(normed), normed

    def residual(batch: Any) -> Any:
        normed = parts.norm(parts.embed(batch.token_ids))
        return parts.add(normed, parts.square(normed))

    assert not kinds(returned)
    assert kinds(residual) == {Kind.PRODUCT: 1}
    for forward in (returned, residual):
        check(forward, 2)


def test_rows_that_a_moved_product_reads_are_still_there(parts: Parts) -> None:
    """The recording has given the product's rows to `later` before the sum is made."""

    def forward(batch: Any) -> Any:
        x = parts.embed(batch.token_ids)
        product = parts.square(parts.norm(x))
        later = parts.norm(parts.norm(x))
        return parts.add(product, later), later

    assert kinds(forward)[Kind.PRODUCT] == 1
    check(forward, 3)


def test_references_are_not_fused() -> None:
    parts = Parts(core_registry().binder(CPU, torch.float16))
    assert not kinds(feed_forward(parts))


def test_no_node_writes_what_it_or_a_later_one_reads(parts: Parts) -> None:
    for few_rows in (True, False):
        graph = fused(record(feed_forward(parts), **MOST), few_rows=few_rows)
        places = place(graph, MOST_ROWS)

        def extent(value: Any, offsets: Any = places.offsets) -> range:
            size = MOST_ROWS[value.rows] * value.width * value.dtype.itemsize
            return range(offsets[value], offsets[value] + size)

        for number, node in enumerate(graph.nodes):
            needed = {v.value for later in graph.nodes[number:] for v in later.views}
            needed |= {v.value for v in graph.outputs}
            made = {view.value for view in node.outs}
            earlier = {v.value for before in graph.nodes[:number] for v in before.outs}
            for value in made:
                for other in needed & earlier:
                    assert max(extent(value).start, extent(other).start) >= min(
                        extent(value).stop, extent(other).stop
                    )
        assert places.nbytes >= max(extent(value).stop for value in places.offsets)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    small = SyntheticModel(
        arch="qwen3",
        layers=1,
        vocab=288,
        width=64,
        heads=2,
        kv_heads=1,
        head_dim=32,
        ff=96,
        qtype="Q4_0",
    )
    return write_synthetic(tmp_path / "small.gguf", small)


def load(path: Path, registry: OpRegistry) -> LlamaEngine:
    context = LoadContext(
        gguf=GgufFile.open(path),
        device=CPU,
        ops=registry.binder(CPU, torch.float16),
        limits=EngineLimits(max_slots=2, max_context=None, cache_type_k="f16", cache_type_v="f16"),
        sampler=lambda vocab_size: Sampler(2, vocab_size),
        settings=None,
        progress=lambda done, total, what: None,
    )
    engine = LlamaEngine.load(context)
    engine.allocate(8)
    return engine


def test_a_served_model_gives_the_same_logits_in_fewer_launches(model: Path) -> None:
    """Eager and as graphs, prompts and decode steps of one and of two rows."""
    backend, registry = Remembered(), interpreted()
    registry.register_recorder(
        lambda recording: compile_recording(recording, backend), provider="graphs", device="cpu"
    )
    seen: list[list[Tensor]] = []
    for engine in (load(model, interpreted()), load(model, registry)):
        found: list[Tensor] = []
        seen.append(found)
        run = engine._run

        def watched(batch: PackedBatch, run: Any = run, found: Any = found) -> Any:
            logits, best = run(batch)
            found.append(logits.clone())
            return logits, best

        engine._run = watched
        driver = Driver(engine, pool_blocks=8)
        driver.submit((5, 17, 30, 42, 8, 1, 2, 3, 4), max_tokens=2)
        driver.submit((5, 17), max_tokens=4)
        driver.run()
    assert len(seen[0]) == len(seen[1]) > 3
    for eager, replayed in zip(*seen, strict=True):
        assert torch.equal(eager, replayed)
    assert backend.replayed >= 3
    (mode,) = engine._ops.modes
    # Gone are both sums, both norms, gate and up of the layer, and the norm of the head.
    assert mode.endswith("; 23 ops in 16 calls, 21 with more than 8 rows")
