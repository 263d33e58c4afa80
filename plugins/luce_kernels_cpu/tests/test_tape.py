"""A replayed step has the bits of the same step run op by op, whatever was fused."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from luce_kernels_cpu.fuse import NO_FUSION, Fusion
from luce_kernels_cpu.recorder import NativeProgram

from luce_core.errors import StepFault
from luce_core.plan import DecodeRow, PrefillSlice, StepPlan

PASSES = tuple(field.name for field in fields(Fusion))
# All, none, each pass alone, and all but each.
FUSIONS = [
    NO_FUSION,
    Fusion(),
    *(replace(NO_FUSION, **{name: True}) for name in PASSES),
    *(replace(Fusion(), **{name: False}) for name in PASSES),
]


def prompt(slot: int, start: int, count: int) -> tuple[int, ...]:
    return tuple((7 * slot + 3 * i) % 256 for i in range(start, start + count))


def plans() -> list[tuple[StepPlan, dict[int, tuple[int, ...]]]]:
    """Prompts in slices, decoding beside them, drafts, a long context, a step without logits."""
    return [
        (StepPlan(1, prefill=(PrefillSlice(0, 0, prompt(0, 0, 33), False),)), {}),
        (
            StepPlan(
                2,
                prefill=(
                    PrefillSlice(0, 33, prompt(0, 33, 300), True),
                    PrefillSlice(1, 0, prompt(1, 0, 1), True),
                ),
            ),
            {},
        ),
        (
            StepPlan(
                3,
                prefill=(PrefillSlice(2, 0, prompt(2, 0, 17), True),),
                decode=(DecodeRow(0, 5, 333, 8), DecodeRow(1, 6, 1, 0)),
            ),
            {0: (1, 2, 3)},
        ),
        (
            StepPlan(
                4, decode=tuple(DecodeRow(s, 9, p, 0) for s, p in ((0, 337), (1, 2), (2, 17)))
            ),
            {},
        ),
    ]


@pytest.mark.parametrize("fusion", FUSIONS, ids=str)
def test_no_fusion_changes_a_bit(load, tiny, stepper, fusion: Fusion) -> None:
    eager = stepper(load(tiny(), recorded=False))
    replayed = stepper(load(tiny(), fusion=fusion))
    for plan, drafts in plans() * 2:
        assert torch.equal(replayed.run(plan, drafts), eager.run(plan, drafts)), plan.step


@pytest.mark.parametrize(
    ("arch", "qtype", "cache"),
    [
        ("llama", "Q4_1", "f16"),
        ("qwen2", "Q5_0", "q8_0"),
        ("qwen3", "Q8_0", "bf16"),
        ("qwen3", "F16", "q4_0"),
        ("llama", "Q4_K", "f32"),
    ],
)
def test_every_architecture_replays(load, tiny, stepper, arch, qtype, cache) -> None:
    path = tiny(arch, qtype, width=256, heads=4, kv_heads=2, ff=256)
    eager = stepper(load(path, recorded=False, cache=cache))
    replayed = stepper(load(path, cache=cache))
    for plan, drafts in plans():
        assert torch.equal(replayed.run(plan, drafts), eager.run(plan, drafts)), plan.step
    for mine, theirs in zip(
        replayed.engine._model._caches, eager.engine._model._caches, strict=True
    ):
        assert torch.equal(mine.k.view(torch.uint8), theirs.k.view(torch.uint8))
        assert torch.equal(mine.v.view(torch.uint8), theirs.v.view(torch.uint8))


def program(engine) -> NativeProgram:
    compiled = engine._run.compiled
    assert isinstance(compiled, NativeProgram)
    return compiled


def test_fusing_leaves_fewer_records_and_barriers(load, tiny) -> None:
    plain = program(load(tiny(), fusion=NO_FUSION))
    fused = program(load(tiny(), fusion=Fusion()))
    assert "add" in plain.names
    assert plain.names.count("rope") == 2 * 2
    # Turns and embedding; norm, heads, attention, out, norm, gate and up, down a layer; gather,
    # norm, head and best token.
    assert set(fused.names).isdisjoint(("add", "quantize", "rope", "kv_write"))
    assert fused.barriers == 1 + 7 * 2 + 3 - 1
    assert plain.names.count("quantize") == 2 * 7 + 1
    assert plain.barriers == len(plain.names) - 1


def test_a_profile_names_every_op_and_repeats_the_step(load, tiny, stepper) -> None:
    replayed = stepper(load(tiny()))
    plan, drafts = plans()[0]
    first = replayed.run(plan, drafts)
    profile = program(replayed.engine).profile(replayed.pack(plan, drafts))
    assert set(profile) == set(program(replayed.engine).names)
    assert all(seconds >= 0 for seconds in profile.values())
    assert torch.equal(replayed.run(plan, drafts), first)


def test_workers_are_told_of_a_step_whether_it_comes_or_not(load, tiny, stepper) -> None:
    """An engine without a program has nobody to tell."""
    steps = [stepper(load(tiny(), recorded=recorded)) for recorded in (True, False)]
    plan, drafts = plans()[0]
    told = []
    steps[0].engine._ops._expect = lambda: told.append(program(steps[0].engine).expect())
    results = []
    for each in steps:
        for _ in range(3):
            each.engine._ops.expect_step()
        results.append(each.run(plan, drafts))
    assert torch.equal(*results)
    assert told == [None] * 3


def test_engines_tell_before_they_pack(load, tiny, stepper) -> None:
    engine = load(tiny())
    assert engine._ops._expect == program(engine).expect
    told = []
    engine._ops._expect = lambda: told.append("told")
    engine.lower_plan(StepPlan(1))
    assert told == ["told"]


def test_an_op_bound_elsewhere_is_named_and_the_step_runs_op_by_op(load, tiny) -> None:
    engine = load(tiny(), overrides={"swiglu": "reference"})
    (mode,) = engine._ops.modes
    assert "cannot record swiglu: it is bound to reference" in mode


def test_a_tied_head_is_packed_once(load, tiny) -> None:
    model = load(tiny())._model
    assert model._embed.weights[0] is model._head.weights[0]


def test_a_batch_larger_than_the_recording_is_refused(load, tiny, stepper) -> None:
    replayed = stepper(load(tiny()))
    batch = replayed.pack(plans()[0][0])
    limit = replayed.engine.capabilities.max_step_rows
    with pytest.raises(StepFault, match=r"rows is .* but the tape's buffers hold"):
        replayed.engine._run(replace(batch, rows=limit + 1))
