"""Steps with experts on two devices are replayed in parts, and give the bits of one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from luce_deepseek_v4.engine import DeepSeekEngine
from luce_deepseek_v4.synthetic import SyntheticDeepSeek, write_deepseek
from torch import Tensor

from luce_core.ops.program import Replay
from luce_core.ops.registry import OpRegistry
from luce_core.testing.driver import Driver

BLOCKS = 24
TWO = {"ds4_expert_device": "cpu", "ds4_expert_budget_mb": 1}

kernels = pytest.importorskip("luce_kernels_cpu")
pytest.importorskip("luce_kernels_cpu.library").native()


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    model = SyntheticDeepSeek(experts=64, top_k=4)
    return write_deepseek(tmp_path_factory.mktemp("two") / "model.gguf", model)


@pytest.fixture
def native(ops_registry) -> Callable[[], OpRegistry]:
    def make() -> OpRegistry:
        registry = ops_registry()
        kernels.luce_register_kernels(registry.register_kernel)
        kernels.luce_register_recorders(registry.register_recorder)
        return registry

    return make


def run(engine: DeepSeekEngine) -> tuple[dict[int, list[int]], list[Tensor]]:
    """Tokens of three requests that prefill and decode in company, and the logits of all steps."""
    compute, seen = engine._run, []

    def watched(batch: Any) -> Any:
        outputs = compute(replace(batch, logits_read=None))
        seen.append(outputs[0].clone())
        return outputs

    engine._run = watched
    driver = Driver(engine, pool_blocks=BLOCKS)
    for length in (30, 9, 17):
        driver.submit(range(length, 2 * length), max_tokens=8)
    driver.run()
    engine._run = compute
    return {number: output.tokens for number, output in driver.outputs.items()}, seen


@pytest.mark.parametrize(("batched", "grouped"), [(True, True), (False, False)])
def test_replayed_parts_give_the_bits_of_one_device(batched, grouped, path, native, load) -> None:
    one = load(path, blocks=BLOCKS, registry=native())
    switches = {"ds4_batch_copies": batched, "ds4_group_experts": grouped}
    two = load(path, blocks=BLOCKS, registry=native(), **TWO, **switches)
    assert isinstance(one._run, Replay)
    assert isinstance(two._run, Replay)
    (tokens, logits), (both, equal) = run(one), run(two)
    assert both == tokens
    assert len(logits) == len(equal)
    assert all(torch.equal(a, b) for a, b in zip(logits, equal, strict=True))
    facts = two.facts["expert_devices"]
    assert facts["copies"] > 0
    assert facts["steps"] == len(equal)
    one.close()
    two.close()


def test_start_up_says_what_is_between_the_parts(path, native, context) -> None:
    loading = context(path, registry=native(), **TWO)
    engine = DeepSeekEngine.load(loading)
    engine.allocate(BLOCKS)
    (mode,) = loading.ops.modes
    assert mode == "replayed by luce_kernels_cpu: in 5 parts, with routed_experts between them"
    engine.close()


def test_routes_are_counted_where_steps_are_replayed_in_parts(path, native, load, tmp_path) -> None:
    found = []
    for more in ({}, TWO):
        file = tmp_path / f"usage{len(found)}.json"
        engine = load(path, blocks=BLOCKS, registry=native(), ds4_collect_routing=file, **more)
        run(engine)
        engine.close()
        found.append(file.read_text())
    assert found[0] == found[1]
