"""The logic of `benchmarks/gpu_check.py`, with a clock that is no GPU's."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from luce_kernels_rocm.arch import arch_named
from luce_kernels_rocm.interpreter import register_interpreted
from luce_kernels_rocm.offer_tables import CORE_OFFERS
from luce_kernels_rocm.roofline.build import costs_of
from luce_kernels_rocm.roofline.devices import device_limits
from luce_kernels_rocm.roofline.shapes import (
    STEPS,
    DraftShape,
    ExpertProduct,
    ExpertsShape,
    ModelShape,
    Product,
    Step,
)

from luce_core.device import Device
from luce_core.ops.cases import OpCase, row_inputs
from luce_core.ops.core_ops import core_registry
from luce_core.ops.device_tools import StepCost
from luce_core.ops.kv_layout import KvLayout
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec, OutSpec, Rows

SMALL = ModelShape(
    name="small",
    width=64,
    vocab=512,
    embedding="Q8_0",
    products=(
        Product("attention q", 2, "Q4_0", 128, 64),
        Product("head", 1, "Q8_0", 512, 64, is_head=True),
    ),
    norms=5,
    adds=4,
    swiglus=2,
    ff=96,
    attentions=2,
    heads=4,
    head_norms=True,
    rotary_dim=32,
    layout=KvLayout(kv_heads=2, head_dim=32, block_size=16),
)
CPU = Device("cpu")


@pytest.fixture(scope="module")
def check() -> Iterator[ModuleType]:
    path = Path(__file__).parents[3] / "benchmarks/gpu_check.py"
    spec = importlib.util.spec_from_file_location("gpu_check", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # its records look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gpu_check"]


def test_every_op_of_every_step_is_called_and_set_against_its_limit(check: ModuleType) -> None:
    calls: list[int] = []

    def clock(runs: Sequence[Any]) -> float:
        for run in runs:
            run()
        calls.append(len(runs))
        return 2e-6

    arch, rates = arch_named("gfx1201"), device_limits("r9700").rates
    steps = [
        StepCost(model="small", step=step.name, ops=tuple(costs_of(SMALL, step, arch)))
        for step in STEPS
    ]
    binder = core_registry().binder(CPU, torch.float16)
    found = list(check.measure(binder, clock, steps, rates, (SMALL,)))
    assert len(found) == len(calls) == sum(len(step.ops) for step in steps)
    assert 2 in calls  # layers of one shape take turns, so that no cache holds their weights
    for each, cost in zip(found, (cost for step in steps for cost in step.ops), strict=True):
        assert each.limit_us == pytest.approx(1e6 * rates.seconds(cost.least))
        assert each.over_limit == pytest.approx(2.0 / each.limit_us)
    text = check.markdown("A GPU, today", found)
    assert text.count("| measured / limit |") == len(STEPS)
    assert f"| {found[0].op} | 64 | {found[0].limit_us:.3g} | 2 |" in text


def test_of_a_draft_and_of_experts_the_core_ops_are_called(check: ModuleType) -> None:
    step = Step("blocks", 2, 4, 40, False, logits=3)
    product = ExpertProduct("down", 1, "Q8_0", 64, 32, 4, 2, own_inputs=True)
    shape = replace(
        SMALL,
        draft=DraftShape(
            features=64,
            window=32,
            convolutions=2,
            taps=2,
            group=16,
            top_k=4,
            rank=32,
            codebook="Q8_0",
        ),
        experts=ExpertsShape(
            count=1, by_token=0, experts=4, top_k=2, inner=32, products=(product,)
        ),
        steps=(step,),
    )
    ops = tuple(costs_of(shape, step, arch_named("gfx1201")))
    costs = (StepCost(model="small", step="blocks", ops=ops),)
    binder = core_registry().binder(CPU, torch.float16)
    rows: list[int] = []

    def clock(runs: Sequence[Any]) -> float:
        rows.append(runs[0]().shape[0])
        return 2e-6

    rates = device_limits("r9700").rates
    found = [each.op for each in check.measure(binder, clock, costs, rates, (shape,))]
    assert found == [cost.op for cost in ops if cost.op in CORE_OFFERS]
    assert {"draft_attention", "moe_matmul"} <= {cost.op for cost in ops} - set(found)
    assert set(rows) == {8, 6}  # all rows, and those with logits


def test_other_ops_are_timed_by_their_slowest_case(check: ModuleType) -> None:
    def out_shape(x: torch.Tensor) -> tuple[int, ...]:
        return tuple(x.shape)

    def double(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(2 * x)

    def cases() -> Iterator[OpCase]:
        for rows in (2, 7, 3):
            yield OpCase(f"{rows} rows", {}, lambda maker, n=rows: row_inputs(maker.normal(n, 4)))

    registry = core_registry()
    x = ArgSpec("x", ArgKind.ACTIVATION, ("T", "D"), Rows.ANY)
    out = OutSpec(Rows.ANY, out_shape)
    registry.register_op(
        OpSpec(name="double", doc="Twice x.", args=(x,), out=out, reference=double, cases=cases)
    )
    registry.register_kernel(
        "double", double, device="cpu", dtypes=(torch.float16,), provider="luce_kernels_rocm"
    )

    def clock(runs: Sequence[Any]) -> float:
        return float(runs[0]().shape[0])  # so many rows, so many seconds

    (slowest,) = check.slowest_cases(registry, CPU, clock)
    assert slowest == check.Slowest("double", "7 rows", 7e6)
    text = check.markdown("A GPU, today", (), (slowest,))
    assert "| double | 7 rows | 7e+06 |" in text


def test_a_wrong_kernel_is_named_and_hides_no_other(check: ModuleType) -> None:
    registry = core_registry()
    register_interpreted(registry.register_kernel)
    assert list(check.wrong_kernels(registry, CPU, ("gather_rows",))) == []

    def broken(x: Any, rows: Any, out: Any) -> None:
        out.zero_()

    registry.register_kernel(
        "gather_rows", broken, device="cpu", dtypes=(torch.float32,), provider="luce_kernels_rocm"
    )
    lines = list(check.wrong_kernels(registry, CPU, ("gather_rows", "add")))
    assert lines
    assert all("gather_rows-luce_kernels_rocm-float32" in line for line in lines)


@pytest.mark.parametrize("device", ["cpu", "cuda:99"])
def test_without_the_gpu_it_says_so(
    check: ModuleType, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main(["--device", device, "--limits", "h200"]) == 2
    assert "gpu_check: " in capsys.readouterr().err
