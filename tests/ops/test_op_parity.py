"""The parity check catches kernels that are wrong in the ways that kernels are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.device import Device
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, Part
from luce_core.ops.core_ops import core_registry
from luce_core.ops.kv_layout import decode_rows
from luce_core.ops.reference.kv_write import kv_write
from luce_core.ops.reference.paged_attention import paged_attention
from luce_core.ops.registry import OpRegistry
from luce_core.ops.spec import SUMMED, ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_core.testing.op_parity import check_parity, parity_cases

CPU = Device.parse("cpu")


def failures(op: str, fn: Any, **declared: Any) -> list[str]:
    registry = core_registry()
    registry.register_kernel(
        op, fn, device="cpu", dtypes=(torch.float32,), provider="mine", **declared
    )
    found = []
    for parity in parity_cases(registry, CPU, provider="mine"):
        try:
            check_parity(parity, CPU)
        except AssertionError as error:
            found.append(str(error))
    return found


def test_a_right_kernel_passes() -> None:
    def swiglu(gate: Tensor, up: Tensor, out: Tensor, *, limit: float | None) -> None:
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        out.copy_(gate / (1 + (-gate).exp()) * up)

    assert failures("swiglu", swiglu) == []


def test_a_kernel_that_forgets_the_last_row_is_caught() -> None:
    def add(a: Tensor, b: Tensor, out: Tensor) -> None:
        out[:-1] = a[:-1] + b[:-1]

    found = failures("add", add)
    assert len(found) == 3
    assert "add-mine-float32" in found[0]
    assert "elements are NaN" in found[0]


def test_a_kernel_that_reads_whole_blocks_and_the_null_block_is_caught() -> None:
    def careless(
        q: Tensor, batch: PackedBatch, k_cache: Tensor, v_cache: Tensor, out: Tensor, **facts: Any
    ) -> None:
        group = facts["heads"] // facts["kv_heads"]
        starts = batch.cu_seqlens.tolist()
        for segment, table in enumerate(batch.block_tables):
            k = decode_rows(k_cache[table], facts["k_type"]).flatten(0, 1)
            v = decode_rows(v_cache[table], facts["v_type"]).flatten(0, 1)
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            rows = slice(starts[segment], starts[segment + 1])
            hidden = torch.arange(len(k)) > batch.positions[rows, None]
            scores = torch.einsum("rhd,chd->hrc", q[rows].float() * facts["scale"], k)
            weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            out[rows] = torch.einsum("hrc,chd->rhd", weights, v)

    registry = core_registry()
    cases = list(registry.spec("paged_attention").cases())
    assert len(failures("paged_attention", careless)) == len(cases)


def test_a_kernel_that_lets_rows_see_the_future_is_caught() -> None:
    def no_causality(q: Tensor, batch: PackedBatch, *rest: Any, **facts: Any) -> None:
        ends = batch.cu_seqlens[1:] - 1
        last = batch.positions[ends].repeat_interleave(batch.cu_seqlens.diff())
        fields = {name: getattr(batch, name) for name in PackedBatch.__slots__}
        paged_attention(q, PackedBatch(**{**fields, "positions": last}), *rest, **facts)

    found = failures("paged_attention", no_causality)
    assert any("mixed step" in line for line in found)
    assert any("verify only" in line for line in found)
    assert not any("one row" in line for line in found)


def test_a_kernel_that_writes_a_row_too_far_is_caught() -> None:
    def off_by_one(k: Tensor, v: Tensor, rows: Tensor, *caches: Tensor, **facts: Any) -> None:
        kv_write(k, v, rows, *caches, **facts)
        caches[0].flatten(0, 1)[rows.max() + 1] = 0

    assert failures("kv_write", off_by_one)


def test_ties_to_the_highest_index_are_caught() -> None:
    def last_of_ties(logits: Tensor, out: Tensor) -> None:
        out.copy_(logits.shape[-1] - 1 - logits.flip(-1).argmax(-1))

    found = failures("greedy_token", last_of_ties)
    assert len([line for line in found if "faults" not in line]) == 3


def test_a_false_claim_of_row_invariance_is_caught() -> None:
    def with_company(x: Tensor, weight: Tensor, out: Tensor, *, eps: float) -> None:
        mean = x.square().mean(-1, keepdim=True)
        out.copy_(x * torch.rsqrt(mean + eps) * weight * (1 + 1e-7 * x.shape[0]))

    assert failures("rms_norm", with_company) == []
    assert any(
        "a row alone" in line for line in failures("rms_norm", with_company, row_invariant=True)
    )


def test_a_false_claim_of_split_invariance_is_caught() -> None:
    def with_chunks(q: Tensor, batch: PackedBatch, *rest: Any, **facts: Any) -> None:
        paged_attention(q, batch, *rest, **facts)
        rest[-1].mul_(1 + 1e-7 * batch.max_query)

    assert failures("paged_attention", with_chunks) == []
    found = failures("paged_attention", with_chunks, split_invariant=True)
    assert any("another chunking" in line for line in found)


def test_a_kernel_is_tried_only_on_cases_that_it_accepts() -> None:
    registry = core_registry()
    registry.register_kernel(
        "quant_matmul",
        lambda *args, **facts: None,
        device="cpu",
        dtypes=(torch.float32, torch.bfloat16),
        accepts=lambda facts: facts["qtype"] == "Q8_0",
        provider="mine",
    )
    cases = list(parity_cases(registry, CPU, provider="mine"))
    assert {case.case.facts["qtype"] for case in cases} == {"Q8_0"}
    assert {case.dtype for case in cases} == {torch.float32, torch.bfloat16}


@pytest.mark.parametrize("op", [spec.name for spec in core_registry().specs.values()])
def test_every_op_has_cases_with_its_facts_and_unique_names(op: str) -> None:
    spec = core_registry().spec(op)
    cases = list(spec.cases())
    assert len({case.name for case in cases}) == len(cases) > 0
    for case in cases:
        assert set(spec.facts) <= set(case.facts) <= {*spec.facts, *spec.optional_facts}


def test_a_kernel_is_judged_on_its_arguments_as_it_reads_them() -> None:
    def rounded(x: Tensor) -> Tensor:
        return (x * 4).round() / 4

    def coarse_add(a: Tensor, b: Tensor, out: Tensor) -> None:
        out.copy_(rounded(a) + b)

    def as_read(facts: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return rounded(args[0]), args[1]

    assert len(failures("add", coarse_add)) == 3
    assert failures("add", coarse_add, as_read=as_read) == []


def running_sum(x: Tensor, total: Tensor, out: Tensor) -> None:
    """Each row plus all rows before it, those of earlier calls included."""
    for row in range(len(x)):
        total += x[row].float()
        out[row] = total


def sum_cases() -> Iterator[OpCase]:
    def make(maker: CaseMaker) -> Inputs:
        x, total = maker.normal(6, 8), maker.normal32(8)
        own = total.clone()
        second = Part((x[2:], own), slice(2, 6), before=((x[:2], own),), seen=slice(0, 8))
        return Inputs((x, total), observe=lambda args: args[1].clone(), split=(second,))

    yield OpCase("six rows", {}, make)


RUNNING_SUM = OpSpec(
    name="running_sum",
    doc="An op with an output and state.",
    args=(
        ArgSpec("x", ArgKind.ACTIVATION, ("T", "N"), Rows.TOKENS),
        ArgSpec("total", ArgKind.CACHE, ("N",), written=True),
    ),
    out=OutSpec(Rows.TOKENS, lambda x, total: tuple(x.shape)),
    reference=running_sum,
    tolerance=SUMMED,
    split_invariant=True,
    cases=sum_cases,
)


def state_failures(fn: Any) -> list[str]:
    registry = OpRegistry()
    registry.register_op(RUNNING_SUM)
    registry.register_kernel(
        "running_sum",
        fn,
        device="cpu",
        dtypes=(torch.float32,),
        provider="mine",
        split_invariant=True,
    )
    found = []
    for parity in parity_cases(registry, CPU, provider="mine"):
        try:
            check_parity(parity, CPU)
        except AssertionError as error:
            found.append(str(error))
    return found


def test_an_op_with_state_passes_if_output_and_state_are_right() -> None:
    assert state_failures(running_sum) == []


def test_state_that_is_not_written_is_caught() -> None:
    found = state_failures(lambda x, total, out: running_sum(x, total.clone(), out))
    assert len(found) == 1


def test_state_whose_bits_depend_on_the_cut_is_caught() -> None:
    def by_halves(x: Tensor, total: Tensor, out: Tensor) -> None:
        before = total.clone()
        running_sum(x, total, out)
        total.copy_(before + x.sum(0))  # another order of the same sum

    (found,) = state_failures(by_halves)
    assert "another chunking" in found
