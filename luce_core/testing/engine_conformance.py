"""What every engine must keep: same tokens alone, in company, chunked, drafted, and preempted.

A plugin's test file needs one import and one fixture:

    from luce_core.testing.engine_conformance import *  # noqa: F403

    @pytest.fixture(scope="module")
    def engine_under_test() -> EngineUnderTest: ...

Where every op that the engine bound declares invariance (`exact`), tokens must be equal. Elsewhere
a step's rounding depends on its company, so a divergence is accepted only where the model itself
was undecided: the two best logprobs of the run alone lie within `tolerance` at that position. The
comparison then goes on from the other run's tokens (teacher forcing), and the count is printed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from luce_core.engine import SeqEngine, check_engine
from luce_core.errors import RequestError
from luce_core.plan import StepPlan
from luce_core.request import GREEDY, FinishReason, Request, SamplingParams
from luce_core.runtime.step_profile import measure_pacing
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.testing.driver import NO_WAITING, Driver, Output
from luce_core.testing.leak_check import leak_check

__all__ = [
    "EngineUnderTest",
    "test_a_cancelled_slot_leaves_no_trace",
    "test_chunking_changes_no_tokens",
    "test_company_changes_no_tokens",
    "test_lowering_a_plan_changes_nothing",
    "test_measuring_steps_leaves_no_trace",
    "test_preemption_changes_no_tokens",
    "test_retire_is_idempotent",
    "test_seeded_text_is_the_same_alone_and_in_company",
    "test_speculation_changes_no_tokens",
    "test_the_contract_is_implemented",
    "test_what_cannot_fit_is_refused",
]

# Proposes drafts for a request, as the engine's own draft model would.
DraftSource = Callable[[Request, int], Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUnderTest:
    """A loaded engine and what the tests may do with it.

    `engine` has been allocated with `pool_blocks`. `with_drafts(source)` gives an engine of the
    same model whose drafts come from `source` (allocated alike), or is None if the engine cannot
    speculate. Prompts are drawn from `prompt_ids` with `longest` tokens at most. `logprobs` says
    that the engine reports logprobs, which the inexact comparison needs.
    """

    engine: SeqEngine
    pool_blocks: int
    prompt_ids: Sequence[int]
    longest: int = 60
    new_tokens: int = 12
    exact: bool = False
    tolerance: float = 1e-3
    logprobs: bool = True
    with_drafts: Callable[[DraftSource], SeqEngine] | None = None

    @property
    def params(self) -> SamplingParams:
        return replace(GREEDY, logprobs=2) if self.logprobs else GREEDY

    def prompt(self, length: int, salt: int = 0) -> tuple[int, ...]:
        """A repeatable prompt of `length` tokens, no longer than the context allows."""
        length = min(length, self.longest)
        return tuple(random.Random(1000 * salt + length).choices(self.prompt_ids, k=length))

    def driver(
        self,
        *,
        pool_blocks: int | None = None,
        policy: SchedulerPolicy = NO_WAITING,
        engine: SeqEngine | None = None,
    ) -> Driver:
        return Driver(
            engine or self.engine, pool_blocks=pool_blocks or self.pool_blocks, policy=policy
        )

    def alone(self, prompt: Sequence[int], *, params: SamplingParams | None = None) -> Output:
        """The run that all others are compared with: one request, nobody else."""
        driver = self.driver()
        request = driver.submit(prompt, max_tokens=self.new_tokens, params=params or self.params)
        driver.run()
        return driver.output(request)

    def expect_same(
        self,
        prompt: Sequence[int],
        tokens: Sequence[int],
        rerun: Callable[[Sequence[int], int], Sequence[int]],
    ) -> int:
        """Compare `tokens` with the run alone; the number of accepted divergences.

        `rerun(prompt, count)` repeats the situation from a longer prompt, for teacher forcing.
        """
        divergences = 0
        prompt = tuple(prompt)
        alone = self.alone(prompt)
        while tuple(tokens) != tuple(alone.tokens[: len(tokens)]) or len(tokens) < len(
            alone.tokens
        ):
            pairs = zip(tokens, alone.tokens, strict=False)
            at = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
            assert at is not None, f"{len(tokens)} tokens, alone there are {len(alone.tokens)}"
            gap = _gap(alone, at)
            assert not self.exact, f"token {at} differs, though every op declares invariance"
            assert gap is not None, f"token {at} differs"
            assert gap <= self.tolerance, f"token {at} differs by a logit gap of {gap:.2e}"
            divergences += 1
            left = len(alone.tokens) - at - 1
            if left == 0:
                break
            prompt = (*prompt, *alone.tokens[: at + 1])
            tokens = rerun(prompt, left)
            alone = self._alone_for(prompt, left)
        return divergences

    def _alone_for(self, prompt: Sequence[int], count: int) -> Output:
        driver = self.driver()
        request = driver.submit(prompt, max_tokens=count, params=self.params)
        driver.run()
        return driver.output(request)


def _gap(output: Output, at: int) -> float | None:
    """Distance of the two best logprobs at a position, if the engine reported them."""
    if at >= len(output.logprobs) or len(output.logprobs[at].top) < 2:
        return None
    (_, best), (_, second) = output.logprobs[at].top[:2]
    return best - second


def _finish(driver: Driver) -> None:
    driver.run()
    leak_check(driver.scheduler, engine=driver.engine)


def _report(what: str, divergences: int) -> None:
    print(f"{what}: {divergences} divergences within tolerance")


def test_the_contract_is_implemented(engine_under_test: EngineUnderTest) -> None:
    engine = check_engine(engine_under_test.engine)
    capabilities = engine.capabilities
    assert capabilities.max_slots >= 2, "the other tests need company"
    assert capabilities.max_step_rows >= capabilities.max_slots * (1 + capabilities.max_draft)
    assert engine.memory_need.bytes_per_token > 0
    assert engine.capabilities is capabilities or engine.capabilities == capabilities


def test_company_changes_no_tokens(engine_under_test: EngineUnderTest) -> None:
    subject = engine_under_test
    slots = subject.engine.capabilities.max_slots
    lengths = (1, 15, 16, 17, 33, subject.longest)
    prompts = [subject.prompt(n, salt) for salt, n in enumerate(lengths)]

    def together(prompts: Sequence[Sequence[int]], count: int) -> list[Sequence[int]]:
        driver = subject.driver()
        requests = []
        for index, prompt in enumerate(prompts):
            requests.append(driver.submit(prompt, max_tokens=count, params=subject.params))
            if index % 2 and index < slots:
                driver.step()  # some join while others decode
        _finish(driver)
        return [driver.output(request).tokens for request in requests]

    divergences = 0
    for index, tokens in enumerate(together(prompts, subject.new_tokens)):

        def rerun(prompt: Sequence[int], count: int, index: int = index) -> Sequence[int]:
            changed = [*prompts]
            changed[index] = tuple(prompt)
            return together(changed, count)[index]

        divergences += subject.expect_same(prompts[index], tokens, rerun)
    _report("company", divergences)


@pytest.mark.parametrize("chunk", [1, 5, 16])
def test_chunking_changes_no_tokens(engine_under_test: EngineUnderTest, chunk: int) -> None:
    subject = engine_under_test
    policy = SchedulerPolicy(
        admission_coalesce_ms=0,
        prefill_chunk=chunk,
        prefill_tokens=chunk,
        long_prefill_tokens=chunk,
        idle_prefill_tokens=chunk,
    )

    def chunked(prompt: Sequence[int], count: int) -> Sequence[int]:
        driver = subject.driver(policy=policy)
        request = driver.submit(prompt, max_tokens=count, params=subject.params)
        _finish(driver)
        return driver.output(request).tokens

    prompt = subject.prompt(34, 3)
    tokens = chunked(prompt, subject.new_tokens)
    _report(f"chunks of {chunk}", subject.expect_same(prompt, tokens, chunked))


def test_speculation_changes_no_tokens(engine_under_test: EngineUnderTest) -> None:
    subject = engine_under_test
    if subject.with_drafts is None:
        pytest.skip("this engine takes no drafts")
    prompts = [subject.prompt(n, 40 + n) for n in (3, 20)]
    truth = {prompt: tuple(subject.alone(prompt).tokens) for prompt in prompts}
    source = random.Random(7)

    def drafts(request: Request, width: int) -> list[int]:
        """The right continuation up to a random length, then wrong tokens."""
        known = next(
            (
                prompt + tokens
                for prompt, tokens in truth.items()
                if request.prompt[: len(prompt)] == prompt
            ),
            (),
        )
        start = request.total_tokens
        right = list(known[start : start + source.randint(0, width)])
        wrong = [source.choice(subject.prompt_ids) for _ in range(width - len(right))]
        return right + wrong

    engine = subject.with_drafts(drafts)
    accepted = 0

    def drafted(prompts: Sequence[Sequence[int]], count: int) -> list[Sequence[int]]:
        nonlocal accepted
        driver = subject.driver(engine=engine)
        requests = [driver.submit(p, max_tokens=count, params=subject.params) for p in prompts]
        _finish(driver)
        accepted += sum(request.accepted for request in requests)
        return [driver.output(request).tokens for request in requests]

    divergences = 0
    for index, tokens in enumerate(drafted(prompts, subject.new_tokens)):
        divergences += subject.expect_same(
            prompts[index], tokens, lambda prompt, count: drafted([prompt], count)[0]
        )
    assert accepted > 0, "no right draft was accepted"
    _report("speculation", divergences)


def test_preemption_changes_no_tokens(engine_under_test: EngineUnderTest) -> None:
    subject = engine_under_test
    prompts = [subject.prompt(24, salt) for salt in (61, 62)]
    preempted = 0

    def disturbed(prompts: Sequence[Sequence[int]], count: int) -> list[Sequence[int]]:
        nonlocal preempted
        driver = subject.driver()
        requests = [driver.submit(p, max_tokens=count, params=subject.params) for p in prompts]
        newest = requests[-1]
        while newest.finish is None:
            driver.step()
            if not newest.preemptions and len(newest.generated) > count // 2:
                driver.scheduler.preempt_newest()
        _finish(driver)
        preempted += newest.preemptions
        return [driver.output(request).tokens for request in requests]

    divergences = 0
    for index, tokens in enumerate(disturbed(prompts, subject.new_tokens)):
        divergences += subject.expect_same(
            prompts[index], tokens, lambda prompt, count: disturbed([prompt], count)[0]
        )
    assert preempted > 0, "nobody was preempted"
    _report("preemption", divergences)


def test_seeded_text_is_the_same_alone_and_in_company(engine_under_test: EngineUnderTest) -> None:
    subject = engine_under_test
    if not (subject.exact and subject.logprobs):
        pytest.skip("sampled text is compared only where every op declares invariance")
    params = SamplingParams(temperature=0.8, top_p=0.95, seed=11)
    prompt = subject.prompt(20, 5)
    expected = subject.alone(prompt, params=params).tokens
    driver = subject.driver()
    for salt in range(min(3, subject.engine.capabilities.max_slots - 1)):
        driver.submit(
            subject.prompt(9, salt),
            max_tokens=subject.new_tokens,
            params=replace(params, seed=salt),
        )
    driver.step()
    request = driver.submit(prompt, max_tokens=subject.new_tokens, params=params)
    _finish(driver)
    assert driver.output(request).tokens == expected


def test_a_cancelled_slot_leaves_no_trace(engine_under_test: EngineUnderTest) -> None:
    subject = engine_under_test
    prompt = subject.prompt(17, 8)
    expected = subject.alone(prompt).tokens
    driver = subject.driver()
    leavers = [
        driver.submit(subject.prompt(33, salt), max_tokens=subject.new_tokens)
        for salt in range(subject.engine.capabilities.max_slots)
    ]
    for _ in range(3):
        driver.step()
    for request in leavers:
        driver.cancel(request)
    _finish(driver)
    assert all(
        driver.output(r).finish in (FinishReason.CANCELLED, FinishReason.LENGTH) for r in leavers
    )
    after = driver.submit(prompt, max_tokens=subject.new_tokens, params=subject.params)
    _finish(driver)
    assert driver.output(after).tokens == expected


def test_lowering_a_plan_changes_nothing(engine_under_test: EngineUnderTest) -> None:
    subject = engine_under_test
    prompt = subject.prompt(20, 12)
    expected = subject.alone(prompt).tokens
    lower = subject.engine.lower_plan

    class Twice:
        """The engine, lowering every plan twice."""

        def __getattr__(self, name: str) -> Any:
            return getattr(subject.engine, name)

        def lower_plan(self, plan: StepPlan) -> Any:
            lower(plan)
            return lower(plan)

    driver = subject.driver(engine=cast(SeqEngine, Twice()))
    request = driver.submit(prompt, max_tokens=subject.new_tokens, params=subject.params)
    _finish(driver)
    assert driver.output(request).tokens == expected


def test_measuring_steps_leaves_no_trace(engine_under_test: EngineUnderTest) -> None:
    """A server measures steps before it serves, on slots that begin inside a context."""
    subject = engine_under_test
    prompt = subject.prompt(20, 14)
    expected = subject.alone(prompt).tokens
    limits = subject.engine.capabilities.with_decode
    for _ in range(2):
        pacing = measure_pacing(
            subject.engine, pool_blocks=subject.pool_blocks, bounds=limits, strict=True
        )
        assert pacing is None or 1 <= pacing.rows <= limits.rows_total
    assert subject.alone(prompt).tokens == expected


def test_retire_is_idempotent(engine_under_test: EngineUnderTest) -> None:
    subject = engine_under_test
    driver = subject.driver()
    request = driver.submit(subject.prompt(5), max_tokens=4)
    driver.step()
    slot = request.slot
    assert slot is not None
    driver.cancel(request)
    _finish(driver)
    subject.engine.retire(slot)
    subject.engine.retire(slot)
    assert subject.alone(subject.prompt(5)).tokens


def test_what_cannot_fit_is_refused(engine_under_test: EngineUnderTest) -> None:
    subject = engine_under_test
    driver = subject.driver()
    context = subject.engine.capabilities.max_context
    with pytest.raises(RequestError, match="maximum context length"):
        driver.submit([subject.prompt_ids[0]] * context, max_tokens=1)
