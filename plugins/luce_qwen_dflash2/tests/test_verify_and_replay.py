"""Verify rows leave a slot's state alone; replay brings it where plain decoding would be."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from luce_qwen_dflash2.engine import QwenEngine
from luce_qwen_dflash2.synthetic import SyntheticHybrid, write_hybrid

from luce_core.errors import StepFault
from luce_core.ops.bound import BoundOp
from luce_core.ops.record import ReferenceRecorder
from luce_core.request import FinishReason, Request, SamplingParams
from luce_core.testing.driver import Driver
from luce_core.testing.leak_check import leak_check

PROMPTS = [[(11 * index + 5 * salt) % 250 for index in range(12 + salt)] for salt in range(3)]
NEW = 16
MOST = 7


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_hybrid(tmp_path_factory.mktemp("tiny") / "tiny.gguf", SyntheticHybrid(seed=4))


def state_of(engine: QwenEngine, slot: int) -> list[torch.Tensor]:
    """Copies of a slot's recurrent state, layer by layer."""
    caches = [mixer.cache for mixer in engine._model._recurrent]
    return [part[slot].clone() for cache in caches for part in (cache.conv, cache.delta)]


def states_by_length(engine: QwenEngine) -> tuple[list[list[int]], list[dict[int, list]]]:
    """Three requests run together: their tokens, and their states by length of the slot."""
    driver = Driver(engine, pool_blocks=64)
    requests = [driver.submit(prompt, max_tokens=NEW) for prompt in PROMPTS]
    states: list[dict[int, list]] = [{} for _ in requests]
    while any(request.finish is None for request in requests):
        driver.step()
        for request, seen in zip(requests, states, strict=True):
            if request.slot is not None:
                seen[request.slot.length] = state_of(engine, request.slot.id)
    return [list(request.generated) for request in requests], states


def right_for(truth: list[list[int]], count: int):
    """Drafts of which the first `count` are right and the next is wrong."""
    known = {tuple(prompt): tokens for prompt, tokens in zip(PROMPTS, truth, strict=True)}

    def drafts(request: Request, width: int) -> list[int]:
        done = len(request.generated)
        follow = known[request.prompt][done : done + width]
        return [token if index < count else (token + 1) % 250 for index, token in enumerate(follow)]

    return drafts


@pytest.mark.parametrize("count", range(MOST + 1))
def test_state_after_any_acceptance_is_that_of_plain_decoding(
    count, tiny, load, row_by_row
) -> None:
    tokens, plain = states_by_length(load(tiny, registry=row_by_row()))
    engine = load(tiny, drafts=right_for(tokens, count), max_draft=MOST, registry=row_by_row())
    drafted_tokens, drafted = states_by_length(engine)
    assert drafted_tokens == tokens
    for request, expected in zip(drafted, plain, strict=True):
        assert len(request) >= (NEW - 1) // (1 + count)
        for length, state in request.items():
            assert all(torch.equal(a, b) for a, b in zip(state, expected[length], strict=True))


def test_nothing_of_a_verifying_slot_changes_before_acceptance(tiny, load) -> None:
    engine = load(tiny, drafts=lambda request, width: [1] * width, max_draft=3)
    driver = Driver(engine, pool_blocks=64)
    for prompt in PROMPTS:
        driver.submit(prompt, max_tokens=NEW)
    driver.step()
    accept, checked = engine._sampler.accept, 0

    def spy(logits, cu_logits, slot_ids, drafts, greedy):
        nonlocal checked
        for slot in slot_ids:
            assert all(map(torch.equal, state_of(engine, slot), before[slot]))
            checked += 1
        return accept(logits, cu_logits, slot_ids, drafts, greedy)

    engine._sampler.accept = spy
    for _ in range(3):
        before = {slot: state_of(engine, slot) for slot in range(3)}
        driver.step()
        assert not all(map(torch.equal, state_of(engine, 0), before[0]))
    assert checked == 9


def test_rows_of_all_slots_share_one_pass_plain_ones_too(tiny, load, monkeypatch) -> None:
    """3 and 2 drafts, and a slot that decodes plainly: each product is made once."""
    counts = {tuple(prompt): count for prompt, count in zip(PROMPTS, (3, 2, 0), strict=True)}
    engine = load(tiny, drafts=lambda request, width: [1] * counts[request.prompt], max_draft=3)
    driver, passes = Driver(engine, pool_blocks=64), []
    for prompt in PROMPTS:
        driver.submit(prompt, max_tokens=NEW)
    driver.step()
    run, call, calls = engine._run, BoundOp.__call__, Counter()

    def spy(batch):
        passes.append((batch.cu_seqlens.tolist(), batch.logits))
        return run(batch)

    def counted(op: BoundOp, *args):
        if op.spec.name == "quant_matmul":
            calls[id(op)] += 1
        return call(op, *args)

    engine._run = spy
    monkeypatch.setattr(BoundOp, "__call__", counted)
    driver.step()
    assert passes == [([0, 4, 7, 8], 8)]
    # 3 DeltaNet layers of 5 products, 1 attention layer of 5, 4 MLPs of 3, and the head
    assert len(calls) == 3 * 5 + 5 + 4 * 3 + 1
    assert set(calls.values()) == {1}


def test_a_slot_whose_state_is_kept_is_a_leak(tiny, load) -> None:
    engine = load(tiny)
    driver = Driver(engine, pool_blocks=64)
    driver.submit(PROMPTS[0], max_tokens=2)
    engine.retire = lambda slot: None
    driver.run()
    with pytest.raises(AssertionError, match=r"keeps state of slots \[0\]"):
        leak_check(driver.scheduler, engine=engine)


def test_a_step_that_fails_after_verifying_moves_no_state(tiny, load) -> None:
    engine = load(tiny, drafts=lambda request, width: [1] * width, max_draft=3)
    driver = Driver(engine, pool_blocks=64)
    requests = [driver.submit(prompt, max_tokens=NEW) for prompt in PROMPTS]
    driver.step()
    before = [state_of(engine, slot) for slot in range(3)]

    def broken(*args):
        raise StepFault("no tokens today")

    engine._sampler.accept, accept = broken, engine._sampler.accept
    driver.step()
    assert [driver.output(r).finish for r in requests] == [FinishReason.ERROR] * 3
    for slot, state in enumerate(before):
        assert all(map(torch.equal, state_of(engine, slot), state))
    engine._sampler.accept = accept
    again = driver.submit(PROMPTS[0], max_tokens=NEW)
    driver.run()
    alone = Driver(load(tiny), pool_blocks=64)
    expected = alone.submit(PROMPTS[0], max_tokens=NEW)
    alone.run()
    assert again.generated == expected.generated


def test_a_failed_row_keeps_its_state_and_others_commit(tiny, load) -> None:
    engine = load(tiny, drafts=lambda request, width: [1] * width, max_draft=3)
    driver = Driver(engine, pool_blocks=64)
    requests = [driver.submit(prompt, max_tokens=NEW) for prompt in PROMPTS]
    driver.step()
    before = [state_of(engine, slot) for slot in range(3)]
    run = engine._run

    def spoiled(batch):
        logits, greedy = run(batch)
        logits[4:8] = float("nan")  # the rows of the second request
        greedy[4:8] = -1
        return logits, greedy

    engine._run = spoiled
    driver.step()
    assert driver.output(requests[1]).finish is FinishReason.ERROR
    assert all(map(torch.equal, state_of(engine, 1), before[1]))
    for slot in (0, 2):
        assert not all(map(torch.equal, state_of(engine, slot), before[slot]))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_joins_and_cancels_among_verifying_slots_change_no_tokens(
    temperature, tiny, load, row_by_row
) -> None:
    chance = random.Random(6)
    prompts = [chance.choices(range(250), k=chance.randint(1, 40)) for _ in range(30)]
    params = [SamplingParams(temperature=temperature, seed=seed) for seed in range(len(prompts))]
    engine, truth = load(tiny, registry=row_by_row()), []
    for prompt, how in zip(prompts, params, strict=True):
        alone = Driver(engine, pool_blocks=64)
        request = alone.submit(prompt, max_tokens=NEW, params=how)
        alone.run()
        truth.append(list(request.generated))

    def drafts(request: Request, width: int) -> list[int]:
        done, right = len(request.generated), chance.randint(0, width)
        known = truth[prompts.index(list(request.prompt))][done : done + right]
        return known + chance.choices(range(250), k=width - len(known))

    drafting = load(tiny, registry=row_by_row(), drafts=drafts, max_draft=MOST)
    driver = Driver(drafting, pool_blocks=64)
    requests: list[Request] = []
    while len(requests) < len(prompts) or any(r.finish is None for r in requests):
        if len(requests) < len(prompts) and chance.random() < 0.6:
            at = len(requests)
            requests.append(driver.submit(prompts[at], max_tokens=NEW, params=params[at]))
        if chance.random() < 0.1:
            driver.cancel(chance.choice(requests))
        driver.step()
    leak_check(driver.scheduler, engine=drafting)
    whole = [r for r in requests if r.finish is FinishReason.LENGTH]
    assert len(whole) > len(prompts) // 2
    assert sum(r.accepted for r in requests) > len(prompts)
    for request, expected in zip(requests, truth, strict=True):
        assert request.generated == expected[: len(request.generated)]


def test_replayed_recordings_equal_eager_steps_bit_for_bit(tiny, load, ops_registry) -> None:
    replaying = ops_registry()
    replaying.register_recorder(ReferenceRecorder().compile, provider="reference", device="cpu")
    tokens, _ = states_by_length(load(tiny))
    results = []
    for registry in (ops_registry(), replaying):
        engine = load(tiny, drafts=right_for(tokens, 2), max_draft=4, registry=registry)
        results.append((engine._ops.modes, *states_by_length(engine)))
    (eager_modes, *eager), (modes, *replayed) = results
    assert all("op by op" in mode for mode in eager_modes)
    assert modes == ("replayed by reference",) * 2
    assert eager[0] == replayed[0]
    for ours, theirs in zip(eager[1], replayed[1], strict=True):
        assert ours.keys() == theirs.keys()
        for length, state in ours.items():
            assert all(map(torch.equal, state, theirs[length]))
