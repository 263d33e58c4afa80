"""Which kernel an op gets, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from luce_core.device import Device
from luce_core.errors import ConfigError, PluginError
from luce_core.host_memory import usable_cores
from luce_core.ops.cases import CaseMaker
from luce_core.ops.core_ops import core_registry
from luce_core.ops.reference import add, rms_norm
from luce_core.ops.registry import OpBinder, OpRegistry
from luce_core.ops.spec import ArgKind, ArgSpec, OpSpec, Rows

CPU = Device.parse("cpu")


def fast_add(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.add(a, b, out=out)


def registry_with_fast_add(**changed: Any) -> OpRegistry:
    registry = core_registry()
    offer = {"device": "cpu", "dtypes": (torch.float32,), "priority": 5, "provider": "fast"}
    registry.register_kernel("add", fast_add, **{**offer, **changed})
    return registry


def provider_of_add(registry: OpRegistry, **binder_args: Any) -> str:
    ops = registry.binder(CPU, binder_args.pop("dtype", torch.float32), **binder_args)
    return ops.bind("add").kernel.provider


def test_the_highest_priority_wins_and_the_reference_comes_last() -> None:
    registry = registry_with_fast_add(priority=-100)
    assert provider_of_add(registry) == "fast"
    registry.register_kernel("add", fast_add, device="any", dtypes=(), priority=1, provider="best")
    assert provider_of_add(registry) == "best"
    assert [kernel.provider for kernel in registry.kernels("add")] == ["best", "fast", "reference"]


@pytest.mark.parametrize(
    "changed",
    [
        {"device": "hip"},
        {"dtypes": (torch.bfloat16,)},
        {"arch": ("gfx1201",)},
        {"accepts": lambda facts: False},
    ],
)
def test_a_kernel_that_does_not_fit_is_passed_over(changed: dict[str, Any]) -> None:
    registry = registry_with_fast_add(**changed)
    assert provider_of_add(registry) == "reference"
    with pytest.raises(ConfigError, match=r"provider 'fast' has no kernel .*there are: fast"):
        provider_of_add(registry, overrides={"add": "fast"})


def test_overrides_beat_priority_for_one_op_or_for_all() -> None:
    registry = registry_with_fast_add()
    assert provider_of_add(registry, overrides={"add": "reference"}) == "reference"
    assert provider_of_add(registry, overrides={"*": "reference"}) == "reference"
    assert provider_of_add(registry, overrides={"*": "reference", "add": "fast"}) == "fast"
    everything_fast = registry.binder(CPU, torch.float32, {"*": "fast"})
    assert everything_fast.bind("add").kernel.provider == "fast"
    assert everything_fast.bind("greedy_token").kernel.provider == "reference"


def test_an_override_that_names_nothing_known_lists_what_there_is() -> None:
    registry = registry_with_fast_add()
    with pytest.raises(ConfigError, match="unknown provider 'slow': there are fast, reference"):
        registry.binder(CPU, torch.float32, {"add": "slow"})
    with pytest.raises(ConfigError, match="unknown op 'ad': known ops are add, embedding_rows"):
        registry.binder(CPU, torch.float32, {"ad": "fast"})


def test_a_provider_that_failed_to_import_is_skipped_unless_it_is_asked_for() -> None:
    registry = core_registry()
    registry.note_failure("triton", ImportError("no module named triton"))
    assert provider_of_add(registry) == "reference"
    assert str(registry.failures["triton"]) == "no module named triton"
    with pytest.raises(ConfigError, match="'triton' failed to load: no module named triton"):
        registry.binder(CPU, torch.float32, {"*": "triton"})


def test_accepts_sees_the_facts_with_defaults_and_no_tensor() -> None:
    seen: list[Mapping[str, Any]] = []

    def accepts(facts: Mapping[str, Any]) -> bool:
        seen.append(facts)
        return True

    registry = core_registry()
    registry.register_kernel(
        "quant_matmul", fast_add, device="cpu", dtypes=(), accepts=accepts, provider="p"
    )
    maker = CaseMaker("cpu", torch.float32)
    registry.binder(CPU, torch.float32).linear(maker.weight(8, 256, "Q4_K"))
    assert [dict(facts) for facts in seen] == [
        {"qtype": "Q4_K", "n": 8, "k": 256, "out_dtype": None}
    ]


def test_prepare_is_called_once_for_the_weight_and_never_for_the_bias() -> None:
    prepared: list[str] = []

    def prepare(weight: Any, device: torch.device) -> Any:
        prepared.append(weight.name)
        return weight.dequantize().double()

    def kernel(x: Tensor, w: Tensor, bias: Tensor, out: Tensor, **facts: Any) -> None:
        out.copy_(x.double() @ w.t() + bias.double())

    registry = core_registry()
    registry.register_kernel(
        "quant_matmul", kernel, device="cpu", dtypes=(), prepare=prepare, provider="p"
    )
    maker = CaseMaker("cpu", torch.float32)
    weight, bias, x = maker.weight(8, 32, "Q8_0"), maker.normal32(8), maker.normal(3, 32)
    linear = registry.binder(CPU, torch.float32).linear(weight, bias=bias)
    for _ in range(2):
        torch.testing.assert_close(linear(x), x @ weight.dequantize().t() + bias)
    assert prepared == ["weight"]


def test_prepare_makes_the_other_weights_that_the_op_marks() -> None:
    spec = replace(
        core_registry().spec("quant_matmul"),
        name="two_tables",
        args=(
            ArgSpec("x", ArgKind.ACTIVATION, ("T", "K"), Rows.TOKENS),
            ArgSpec("first", ArgKind.WEIGHT, ("N", "K")),
            ArgSpec("second", ArgKind.WEIGHT, ("N", "K"), prepared=True),
            ArgSpec("third", ArgKind.WEIGHT, ("N", "K")),
        ),
        prepare=lambda weight, device: weight.qtype.name,
    )
    registry = OpRegistry()
    registry.register_op(spec)
    maker = CaseMaker("cpu", torch.float32)
    tables = tuple(maker.weight(8, 256, qtype) for qtype in ("Q8_0", "Q4_K", "Q6_K"))
    bound = registry.binder(CPU, torch.float32).bind(
        "two_tables", weights=tables, qtype="Q8_0", n=8, k=256
    )
    assert bound.weights[:2] == ("Q8_0", "Q4_K")
    assert bound.weights[2].dtype == torch.float32


def test_linear_and_embedding_bind_by_quant_type() -> None:
    maker = CaseMaker("cpu", torch.float32)
    ops = core_registry().binder(CPU, torch.bfloat16)
    table = maker.weight(10, 32, "Q4_1")
    rows = ops.embedding(table)(torch.tensor([3, 9], dtype=torch.int32))
    assert torch.equal(rows, table.dequantize()[[3, 9]].bfloat16())
    logits = ops.linear(table, out_dtype=torch.float32)(rows)
    assert (logits.dtype, logits.shape) == (torch.float32, (2, 10))
    assert [(b.op, b.facts["qtype"]) for b in ops.bound] == [
        ("embedding_rows", "Q4_1"),
        ("quant_matmul", "Q4_1"),
    ]


def test_bound_lists_every_choice_with_its_declared_invariance() -> None:
    ops = registry_with_fast_add(row_invariant=True).binder(CPU, torch.float32)
    ops.bind("add")
    ops.bind("swiglu", limit=2.0)
    assert [(b.op, b.provider, dict(b.facts)) for b in ops.bound] == [
        ("add", "fast", {}),
        ("swiglu", "reference", {"limit": 2.0}),
    ]
    assert (ops.bound[0].row_invariant, ops.bound[0].split_invariant) == (True, False)


def binder() -> OpBinder:
    return core_registry().binder(CPU, torch.float32)


def test_wrong_binds_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown op 'rmsnorm': known ops are .*rms_norm"):
        binder().bind("rmsnorm")
    with pytest.raises(ConfigError, match=r"unknown fact 'epsilon', it knows \['eps'\]"):
        binder().bind("rms_norm", weights=(torch.ones(4),), epsilon=1e-5)
    with pytest.raises(ConfigError, match=r"missing facts \['eps'\]"):
        binder().bind("rms_norm", weights=(torch.ones(4),))
    with pytest.raises(ConfigError, match=r"takes weights \['weight'\], got 0"):
        binder().bind("rms_norm", eps=1e-5)
    with pytest.raises(ConfigError, match="weight weight is missing"):
        binder().bind("rms_norm", weights=(None,), eps=1e-5)


def test_a_kernel_of_an_op_that_nobody_registers_is_dormant() -> None:
    registry = OpRegistry()
    registry.register_kernel("add", fast_add, device="cpu", dtypes=(), provider="early")
    assert list(registry.dormant) == ["add"]
    assert registry.providers == ()
    with pytest.raises(ConfigError, match="unknown op 'add'"):
        registry.kernels("add")

    registry.register_op(core_registry().spec("add"))
    assert [kernel.provider for kernel in registry.kernels("add")] == ["early", "reference"]
    assert not registry.dormant


def test_wrong_registrations_are_refused_by_name() -> None:
    registry = core_registry()
    with pytest.raises(PluginError, match="op 'rms_norm' is registered twice"):
        registry.register_op(rms_norm.SPEC)
    with pytest.raises(PluginError, match="device 'gpu' is not one of cpu, cuda, hip, any"):
        registry.register_kernel("add", fast_add, device="gpu", dtypes=())
    with pytest.raises(PluginError, match="'reference' cannot be a provider's name"):
        registry.register_kernel("add", fast_add, device="cpu", dtypes=(), provider="reference")


def test_a_provider_is_named_after_the_functions_package_by_default() -> None:
    registry = core_registry()
    registry.register_kernel("add", add.add, device="cpu", dtypes=())
    assert "luce_core" in registry.providers


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "first argument must come from the step"),
        ((ArgSpec("w", ArgKind.WEIGHT),), "first argument must come from the step"),
        (
            (
                ArgSpec("x", ArgKind.ACTIVATION),
                ArgSpec("w", ArgKind.WEIGHT),
                ArgSpec("y", ArgKind.FIELD),
            ),
            "weights must be the last",
        ),
        ((ArgSpec("x", ArgKind.ACTIVATION),), "has no output and writes no cache"),
    ],
)
def test_a_malformed_spec_is_refused(args: tuple[ArgSpec, ...], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        OpSpec(name="bad", doc="", args=args, out=None, reference=fast_add, cases=lambda: ())


def test_a_provider_is_set_up_once_per_engine_before_its_first_op() -> None:
    calls: list[int] = []
    registry = registry_with_fast_add(setup=calls.append)
    registry.register_kernel(
        "swiglu",
        fast_add,
        device="cpu",
        dtypes=(),
        setup=calls.append,
        provider="fast",
    )
    binder = registry.binder(CPU, torch.float32, threads=3)
    assert calls == []
    binder.bind("add")
    binder.bind("add")
    binder.bind("swiglu")
    assert calls == [3]
    registry.binder(CPU, torch.float32, {"*": "reference"}, threads=5).bind("add")
    assert calls == [3]
    registry.binder(CPU, torch.float32).bind("add")
    assert calls == [3, usable_cores()]
