"""Experts on two devices give the bits of one device, and the traffic falls with batching."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from luce_deepseek_v4.engine import DeepSeekEngine
from luce_deepseek_v4.placement import place_experts
from luce_deepseek_v4.synthetic import SyntheticDeepSeek, write_deepseek
from torch import Tensor

from luce_core.errors import ConfigError
from luce_core.ops.registry import OpRegistry
from luce_core.testing.driver import Driver

BLOCKS = 24
TWO = {"ds4_expert_device": "cpu", "ds4_expert_budget_mb": 1}
SWITCHES = [(True, True), (True, False), (False, True), (False, False)]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """3.3 MB of experts, so that a budget of 1 MB leaves some of each layer on either device."""
    model = SyntheticDeepSeek(experts=64, top_k=4)
    return write_deepseek(tmp_path_factory.mktemp("two") / "model.gguf", model)


@pytest.fixture(params=["references", "native"])
def ops(request, ops_registry) -> Callable[[], OpRegistry]:
    """Makes registries, without recorders, as the logits of all rows are watched."""
    if request.param == "references":
        return ops_registry
    kernels = pytest.importorskip("luce_kernels_cpu")
    pytest.importorskip("luce_kernels_cpu.library").native()

    def make() -> OpRegistry:
        registry = ops_registry()
        kernels.luce_register_kernels(registry.register_kernel)
        return registry

    return make


Run = Callable[..., tuple[dict[int, list[int]], dict[int, Tensor], DeepSeekEngine]]


@pytest.fixture
def run(load, watch) -> Iterator[Run]:
    """Runs three requests on an engine: their tokens, all of their logits, and the engine."""
    engines: list[DeepSeekEngine] = []

    def run_on(model: Path | DeepSeekEngine, **more: Any):
        engine = load(model, blocks=BLOCKS, **more) if isinstance(model, Path) else model
        engines.append(engine)
        watched, driver = watch(engine), Driver(engine, pool_blocks=BLOCKS)
        for length in (30, 9, 17):
            driver.submit(range(length, 2 * length), max_tokens=8)
        driver.run()
        tokens = {number: output.tokens for number, output in driver.outputs.items()}
        logits = {
            number: torch.stack([rows[position] for position in sorted(rows)])
            for number, rows in watched.logits.items()
        }
        return tokens, logits, engine

    yield run_on
    for engine in engines:
        engine.close()


@pytest.mark.parametrize(("batched", "grouped"), SWITCHES)
def test_tokens_and_logits_are_those_of_one_device(batched, grouped, path, ops, run) -> None:
    tokens, logits, _ = run(path, registry=ops())
    switches = {"ds4_batch_copies": batched, "ds4_group_experts": grouped}
    both, equal, engine = run(path, registry=ops(), **TWO, **switches)
    assert engine.facts["expert_devices"]["near_experts"] > 0
    assert both == tokens
    for number, expected in logits.items():
        assert torch.equal(equal[number], expected)


def test_copies_and_launches_fall_with_batching(path, ops_registry, run) -> None:
    counted = {}
    for batched, grouped in SWITCHES:
        switches = {"ds4_batch_copies": batched, "ds4_group_experts": grouped}
        _, _, engine = run(path, registry=ops_registry(), **TWO, **switches)
        facts = engine.facts["expert_devices"]
        counted[batched, grouped] = (facts["copies"], facts["expert_launches"])
        steps = facts["steps"]
    print(counted)
    (few_copies, few_launches), many = counted[True, True], counted[False, False]
    assert counted[True, False] == (few_copies, many[1])
    assert counted[False, True] == (many[0], few_launches)
    assert few_copies <= 2 * 4 * steps < many[0]
    assert few_launches <= 2 * 3 * 4 * steps < many[1]


def test_counts_are_the_copies_and_calls_that_there_were(
    path, ops_registry, run, monkeypatch
) -> None:
    """Counted by hand: each call of the op, and each pick of a far expert, there and back."""
    calls: list[int] = []
    registry = ops_registry()
    spec = registry.spec("moe_matmul")

    def spy(*args: Any, **facts: Any) -> None:
        calls.append(facts["experts"])
        spec.reference(*args, **facts)

    registry.register_kernel("moe_matmul", spy, device="cpu", dtypes=(), provider="spy")
    switches = {"ds4_batch_copies": False, "ds4_group_experts": False}
    _, _, engine = run(path, registry=registry, **TWO, **switches)
    facts = engine.facts["expert_devices"]
    calls = [owned for owned in calls if owned > 2]  # the others are groups of attention's output
    far = {len(layer) for layer in engine._experts._devices.placement.far}
    assert facts["expert_launches"] == len(calls)
    assert facts["copies"] == 2 * sum(owned in far for owned in calls) / 3
    assert facts["copies_per_step"] == round(facts["copies"] / facts["steps"], 2)


@pytest.mark.parametrize(("given", "wanted"), [({}, 8), ({"ds4_group_rows": 2}, 2)])
@pytest.mark.parametrize("devices", [{}, TWO], ids=["one", "two"])
def test_products_of_experts_get_the_rows_of_a_group(devices, given, wanted, path, context) -> None:
    loading = context(path, **devices, **given)
    engine = DeepSeekEngine.load(loading)
    groups = {
        binding.facts["group_rows"]
        for binding in loading.ops.bound
        if binding.op == "moe_matmul" and binding.facts["experts"] > 2
    }
    assert groups == {wanted} == {engine.facts["expert_group_rows"]}
    engine.close()


@pytest.mark.parametrize("budget", [0, 500, 999, 1000, 12345, 10**9])
def test_the_budget_is_kept_and_used(budget) -> None:
    usage = [[0, 5, 3, 9], [7, 7, 0, 1]]
    sizes = [100, 70]
    placement = place_experts(usage, sizes, budget=budget)
    held = sum(size * len(near) for size, near in zip(sizes, placement.near, strict=True))
    assert held == placement.near_bytes <= budget
    assert placement.near_bytes + placement.far_bytes == 4 * (100 + 70)
    assert placement.near_experts + placement.far_experts == 8
    if placement.far_experts:
        left = {size for size, far in zip(sizes, placement.far, strict=True) if far}
        assert budget - held < max(left)
    for near, far in zip(placement.near, placement.far, strict=True):
        assert sorted((*near, *far)) == [0, 1, 2, 3]


def test_the_most_used_experts_are_near() -> None:
    placement = place_experts([[0, 5, 3, 9], [7, 7, 0, 1]], [10, 10], budget=49)
    assert placement.near == ((1, 3), (0, 1))
    unused = place_experts([[0] * 4, [0] * 4], [10, 10], budget=40)
    assert unused.near == ((0, 1), (0, 1))


def test_a_budget_for_all_experts_replays_as_one_device(path, run, ops_registry) -> None:
    tokens, logits, _ = run(path, registry=ops_registry())
    settings = {**TWO, "ds4_expert_budget_mb": 4}
    same, equal, engine = run(path, registry=ops_registry(), **settings)
    assert engine.facts["expert_devices"]["far_experts"] == 0
    assert tokens == same
    assert all(torch.equal(logits[number], equal[number]) for number in logits)


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"ds4_expert_device": "cpu"}, "--ds4-expert-budget-mb"),
        ({"ds4_expert_device": "cpu", "ds4_expert_budget_mb": 1, "slots": 99}, "--ds4-step-rows"),
        ({"ds4_expert_budget_mb": 5}, "--ds4-expert-budget-mb needs --ds4-expert-device"),
        ({"ds4_expert_profile": "x"}, "--ds4-expert-profile needs --ds4-expert-device"),
        ({"ds4_batch_copies": False}, "--ds4-batch-copies needs --ds4-expert-device"),
        ({"ds4_group_experts": False}, "--ds4-group-experts needs --ds4-expert-device"),
        ({**TWO, "ds4_expert_device": "gpu"}, "unknown device 'gpu'"),
        ({**TWO, "ds4_expert_device": "hip:7"}, "device hip:7 is not there"),
        ({**TWO, "ds4_expert_profile": "/no/such"}, "--ds4-expert-profile /no/such: No such file"),
        ({"ds4_collect_routing": "/no/such/file"}, "--ds4-collect-routing /no/such/file"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused_by_name(settings, flag, path, load) -> None:
    with pytest.raises(ConfigError, match=flag):
        load(path, **settings)


def test_peer_access_is_refused_where_there_is_no_second_device(path, context) -> None:
    with pytest.raises(ConfigError, match="--peer-access needs --ds4-expert-device"):
        DeepSeekEngine.load(replace(context(path), peer_access=True))
