"""The promises of admission, planning, exhaustion and faults, on the fake engine."""

from __future__ import annotations

import pytest

from luce_core.commands import Cancel, Drain, Stop
from luce_core.errors import EngineDead, RequestError
from luce_core.plan import DecodeRow, SlotOutput, StepResult
from luce_core.request import (
    GREEDY,
    FinishReason,
    SamplingParams,
    State,
)
from luce_core.scheduler.policy import SchedulerPolicy
from luce_core.testing.byte_vocab import EOS
from luce_core.testing.driver import NO_WAITING, Driver, Output, run_alone
from luce_core.testing.fake_engine import FakeEngine, HashMind, ScriptMind, rows_of
from luce_core.testing.leak_check import leak_check


def make(pool_blocks: int = 64, policy: SchedulerPolicy = NO_WAITING, **engine) -> Driver:
    fake = FakeEngine(**engine)
    fake.allocate(pool_blocks)
    return Driver(fake, pool_blocks=pool_blocks, policy=policy)


def fake(driver: Driver) -> FakeEngine:
    assert isinstance(driver.engine, FakeEngine)
    return driver.engine


def alone(prompt, max_tokens: int, **engine) -> Output:
    lonely = FakeEngine(max_context=4096, **engine)
    lonely.allocate(256)
    return run_alone(lonely, prompt, max_tokens=max_tokens, pool_blocks=256)


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(7 * index + salt) % 200 for index in range(length)]


def done(driver: Driver) -> None:
    driver.run()
    leak_check(driver.scheduler, engine=driver.engine)


# -- company -----------------------------------------------------------------------------------


def test_rows_of_every_length_are_independent() -> None:
    driver = make(slots=6)
    cases = list(zip((1, 15, 16, 17, 33, 257), (1, 40, 7, 100, 2, 63), strict=True))
    requests = [driver.submit(prompt(n, n), max_tokens=m) for n, m in cases]
    done(driver)
    for request, (n, m) in zip(requests, cases, strict=True):
        assert driver.output(request).tokens == alone(prompt(n, n), m).tokens
        assert driver.output(request).finish is FinishReason.LENGTH


@pytest.mark.parametrize("chunk", [1, 3, 16, 64, 500])
def test_chunking_changes_nothing(chunk: int) -> None:
    driver = make(chunk=chunk)
    first = driver.submit(prompt(130), max_tokens=20)
    second = driver.submit(prompt(70, 5), max_tokens=20)
    done(driver)
    assert driver.output(first).tokens == alone(prompt(130), 20).tokens
    assert driver.output(second).tokens == alone(prompt(70, 5), 20).tokens


# -- admission ---------------------------------------------------------------------------------


def test_small_request_does_not_overtake_the_head() -> None:
    driver = make(pool_blocks=16)
    holder = driver.submit(prompt(10 * 16 - 20), max_tokens=30)
    driver.step()
    big = driver.submit(prompt(12 * 16 - 20), max_tokens=2)
    small = driver.submit(prompt(5), max_tokens=2)
    driver.step()
    assert holder.state is State.DECODE
    assert (big.state, small.state) == (State.QUEUED, State.QUEUED)
    while holder.finish is None:
        assert small.slot is None
        driver.step()
    driver.step()
    assert big.slot is not None or big.finish is not None
    done(driver)


def test_freed_blocks_serve_the_next_request_in_the_same_pass() -> None:
    driver = make(pool_blocks=4, max_context=64)
    first = driver.submit(prompt(40), max_tokens=3)
    second = driver.submit(prompt(40, 1), max_tokens=3)
    plans = fake(driver).plans
    while first.finish is None:
        driver.step()
    ended_at = len(plans)
    driver.step()
    assert [piece.start for piece in plans[ended_at].prefill] == [0]
    assert second.slot is not None
    done(driver)


def test_all_slots_that_end_together_are_filled_together_in_order() -> None:
    driver = make(slots=4)
    first = [driver.submit(prompt(8, i), max_tokens=4) for i in range(4)]
    later = [driver.submit(prompt(8, 9 + i), max_tokens=4) for i in range(6)]
    while first[0].finish is None:
        driver.step()
    assert all(request.finish for request in first)
    driver.step()
    assert [request.slot is not None for request in later] == [True] * 4 + [False] * 2
    done(driver)


def test_what_can_never_fit_is_refused_at_once() -> None:
    driver = make(pool_blocks=8, max_context=4096)
    with pytest.raises(RequestError, match="200") as refusal:
        driver.submit(prompt(200), max_tokens=5)
    assert refusal.value.code == "kv_capacity_exceeded"
    with pytest.raises(RequestError, match="maximum context length is 4096 tokens") as refusal:
        driver.submit(prompt(4096), max_tokens=5)
    assert refusal.value.code == "context_length_exceeded"
    ten = driver.submit(prompt(10), max_tokens=5)
    done(driver)
    assert driver.output(ten).finish is FinishReason.LENGTH


def test_admission_that_fails_gives_everything_back() -> None:
    driver = make(slots=2)
    fake(driver).fail_at("admit", times=50)
    for index in range(50):
        request = driver.submit(prompt(20, index), max_tokens=5)
        done(driver)
        assert driver.output(request).finish is FinishReason.ERROR
    fine = driver.submit(prompt(20), max_tokens=5)
    done(driver)
    assert driver.output(fine).tokens == alone(prompt(20), 5).tokens


def test_full_reservation_never_preempts() -> None:
    policy = SchedulerPolicy(admission_coalesce_ms=0, reserve="full")
    driver = make(pool_blocks=8, max_context=128, policy=policy)
    for salt in range(2):
        driver.submit(prompt(48, salt), max_tokens=60)
    done(driver)
    assert driver.scheduler.preemptions == 0


# -- planning ----------------------------------------------------------------------------------


def test_decode_rows_ride_in_every_step_with_prefill() -> None:
    driver = make(slots=4, max_context=8192, pool_blocks=1024, chunk=256)
    runner = driver.submit(prompt(5), max_tokens=60)
    driver.step()
    for salt in range(3):
        driver.submit(prompt(4096, salt), max_tokens=2)
    driver.run()
    assert runner.finish is FinishReason.LENGTH
    decoding = [plan for plan in fake(driver).plans[1:60] if plan.prefill]
    assert decoding
    for plan in decoding:
        assert [row.slot_id for row in plan.decode][:1] == [0]
        assert sum(len(piece.tokens) for piece in plan.prefill) <= 4 * 256


def test_first_burst_steps_allow_that_many_prefill_only_steps() -> None:
    policy = SchedulerPolicy(
        admission_coalesce_ms=0, first_burst_steps=2, idle_prefill_tokens=16, prefill_tokens=16
    )
    driver = make(slots=2, policy=policy, chunk=16)
    driver.submit(prompt(5), max_tokens=40)
    driver.step()
    driver.submit(prompt(160), max_tokens=1)
    driver.run()
    kinds = [bool(plan.decode) for plan in fake(driver).plans[1:] if plan.prefill]
    assert kinds[:6] == [False, False, True, False, False, True]


def test_a_long_prompt_does_not_keep_a_short_one_waiting() -> None:
    policy = SchedulerPolicy(admission_coalesce_ms=0, idle_prefill_tokens=512)
    driver = make(slots=2, max_context=8192, pool_blocks=1024, policy=policy)
    driver.submit(prompt(7000), max_tokens=1)
    driver.step()
    short = driver.submit(prompt(20), max_tokens=5)
    for _ in range(3):
        driver.step()
    assert short.times.first_token is not None


def test_prompt_rows_never_pass_the_engine_s_step_rows() -> None:
    driver = make(slots=8, chunk=8, max_draft=3, accept=(1,))
    for salt in range(8):
        driver.submit(prompt(50, salt), max_tokens=20)
    driver.run()
    most = driver.engine.capabilities.max_step_rows
    assert all(plan.rows <= most for plan in fake(driver).plans)


def test_a_long_queue_costs_a_step_nothing() -> None:
    driver = make(slots=4)
    for salt in range(4):
        driver.submit(prompt(8, salt), max_tokens=50)
    driver.step()
    waiting = [driver.submit(prompt(2), max_tokens=1) for _ in range(2000)]
    driver.step()
    for request in waiting[:-1]:
        driver.cancel(request)
    for _ in range(3):
        driver.step()
    assert driver.scheduler.queued == 1
    done(driver)
    assert driver.output(waiting[-1]).finish is FinishReason.LENGTH


# -- the pool runs out -------------------------------------------------------------------------


@pytest.mark.parametrize(("max_draft", "accept"), [(0, (0,)), (3, (0, 3, 1))])
@pytest.mark.parametrize("length", [40, 48])
def test_two_that_fit_only_alone_cost_at_most_one_recompute(
    length: int, max_draft: int, accept
) -> None:
    driver = make(pool_blocks=8, max_context=128, max_draft=max_draft, accept=accept)
    older = driver.submit(prompt(length), max_tokens=60)
    newer = driver.submit(prompt(length, 3), max_tokens=60)
    done(driver)
    # With a headroom of a block, prompts of 48 tokens are not even admitted together.
    assert (older.preemptions, newer.preemptions) == (0, 1 if length == 40 else 0)
    for request, salt in ((older, 0), (newer, 3)):
        output = driver.output(request)
        assert output.tokens == alone(prompt(length, salt), 60).tokens
        assert output.usage is not None
        assert output.usage[:2] == (length, 60)


def test_speculation_is_given_up_before_anyone_is_preempted() -> None:
    driver = make(pool_blocks=8, max_context=128, max_draft=15, accept=(0, 15))
    older = driver.submit(prompt(24), max_tokens=8)
    newer = driver.submit(prompt(24, 3), max_tokens=70)
    done(driver)
    assert older.preemptions == newer.preemptions == 0
    dropped = [
        row
        for row in rows_of(fake(driver).plans, 1)
        if isinstance(row, DecodeRow) and row.max_draft == 0 and row.position < 80
    ]
    assert dropped
    assert driver.output(newer).tokens == alone(prompt(24, 3), 70).tokens


def test_the_last_one_in_a_full_pool_ends_with_length() -> None:
    driver = make(pool_blocks=8, max_context=4096)
    request = driver.submit(prompt(100), max_tokens=100)
    done(driver)
    output = driver.output(request)
    assert output.finish is FinishReason.LENGTH
    # Every position of the pool is used; the last token needs none.
    assert len(output.tokens) == 8 * 16 - 100 + 1
    assert output.tokens == alone(prompt(100), 29).tokens


def test_a_preempted_request_comes_back_before_those_behind_it() -> None:
    driver = make(pool_blocks=8, slots=2, max_context=128)
    driver.submit(prompt(40), max_tokens=60)
    newer = driver.submit(prompt(40, 3), max_tokens=60)
    driver.step()
    late = driver.submit(prompt(4), max_tokens=2)
    while not newer.preemptions:
        driver.step()
    while newer.slot is None:
        assert late.slot is None
        driver.step()
    done(driver)
    assert driver.output(newer).tokens == alone(prompt(40, 3), 60).tokens


# -- ends --------------------------------------------------------------------------------------


def script(driver_tokens: list[int], **engine) -> Driver:
    return make(mind=ScriptMind(lambda request: driver_tokens), **engine)


@pytest.mark.parametrize("accept", [0, 1, 4, 7])
def test_nothing_after_eos_appears_anywhere(accept: int) -> None:
    driver = script([*b"hi", EOS, *b"xy"], max_draft=8, accept=(accept,))
    request = driver.submit(b"q", max_tokens=20, stop_ids=[EOS])
    done(driver)
    output = driver.output(request)
    assert output.tokens == [*b"hi", EOS]
    assert output.finish is FinishReason.STOP
    assert output.usage is not None
    assert output.usage.completion_tokens == 3
    assert request.accepted <= 2


def test_min_tokens_lets_stop_ids_pass_until_it_is_reached() -> None:
    driver = script([EOS, EOS, *b"ab", EOS])
    params = SamplingParams(temperature=0.0, min_tokens=3)
    request = driver.submit(b"q", max_tokens=20, stop_ids=[EOS], params=params)
    done(driver)
    assert driver.output(request).tokens == [EOS, EOS, *b"ab", EOS]


def test_a_stop_string_truncates_and_counts_as_a_stop() -> None:
    driver = script([*b"abcdef"])
    request = driver.submit(b"q", max_tokens=20)
    for _ in range(5):
        driver.step()
    driver.finish(request, tokens=3)
    done(driver)
    output = driver.output(request)
    assert output.finish is FinishReason.STOP
    assert output.usage is not None
    assert output.usage.completion_tokens == 3


def test_context_end_is_a_length_end() -> None:
    driver = make(max_context=40)
    request = driver.submit(prompt(30), max_tokens=99)
    done(driver)
    assert len(driver.output(request).tokens) == 10


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_cancel_works_in_every_state_twice_and_for_unknown_ids(steps: int) -> None:
    policy = SchedulerPolicy(admission_coalesce_ms=0, idle_prefill_tokens=16, prefill_tokens=16)
    driver = make(slots=1, policy=policy)
    first = driver.submit(prompt(40), max_tokens=30)
    second = driver.submit(prompt(9, 1), max_tokens=6)
    for _ in range(steps):
        driver.step()
    driver.cancel(first)
    driver.cancel(first)
    driver.scheduler.handle(Cancel(999_999))
    driver.step()
    assert driver.output(first).finish is FinishReason.CANCELLED
    expected = State.QUEUED if steps == 0 else State.PREFILL if steps < 3 else State.DECODE
    assert first.ended_in is expected
    done(driver)
    assert driver.output(second).tokens == alone(prompt(9, 1), 6).tokens


def test_a_cancelled_queued_request_is_never_run() -> None:
    driver = make(slots=1)
    driver.submit(prompt(8), max_tokens=5)
    gone = driver.submit(prompt(8, 1), max_tokens=5)
    last = driver.submit(prompt(8, 2), max_tokens=5)
    driver.step()
    driver.cancel(gone)
    done(driver)
    starts = [piece.tokens for plan in fake(driver).plans for piece in plan.prefill]
    assert tuple(prompt(8, 1)) not in starts
    assert driver.output(last).tokens == alone(prompt(8, 2), 5).tokens


# -- faults ------------------------------------------------------------------------------------


def test_a_failed_step_ends_exactly_the_plan_s_requests() -> None:
    driver = make(slots=2)
    planned = [driver.submit(prompt(8, i), max_tokens=9) for i in range(2)]
    queued = driver.submit(prompt(8, 7), max_tokens=9)
    driver.step()
    fake(driver).fail_at("step")
    done(driver)
    assert [driver.output(r).finish for r in planned] == [FinishReason.ERROR] * 2
    assert driver.output(queued).tokens == alone(prompt(8, 7), 9).tokens


def test_a_slot_fault_ends_one_and_the_others_step_still_happens() -> None:
    driver = make(slots=3)
    requests = [driver.submit(prompt(8, i), max_tokens=9) for i in range(3)]
    driver.step()
    fake(driver).fail_at("lower")
    steps = len(fake(driver).plans)
    driver.step()
    assert len(fake(driver).plans) == steps + 1
    done(driver)
    finishes = [driver.output(r).finish for r in requests]
    assert finishes == [FinishReason.ERROR, FinishReason.LENGTH, FinishReason.LENGTH]
    for index in (1, 2):
        assert driver.output(requests[index]).tokens == alone(prompt(8, index), 9).tokens


def test_a_failed_row_and_a_failed_commit_end_one_request() -> None:
    for place in ("row", "commit"):
        driver = make(slots=3)
        fake(driver).fail_at(place)
        requests = [driver.submit(prompt(8, i), max_tokens=9) for i in range(3)]
        done(driver)
        finishes = [driver.output(r).finish for r in requests]
        assert finishes.count(FinishReason.ERROR) == 1


def test_a_retire_that_fails_loses_nothing() -> None:
    driver = make(slots=1)
    fake(driver).fail_at("retire")
    driver.submit(prompt(8), max_tokens=2)
    after = driver.submit(prompt(8, 1), max_tokens=5)
    done(driver)
    assert driver.output(after).tokens == alone(prompt(8, 1), 5).tokens
    assert driver.scheduler.retire_faults == 1


def test_too_many_failed_steps_in_a_row_end_everything() -> None:
    driver = make(slots=1, policy=SchedulerPolicy(admission_coalesce_ms=0, max_step_faults=3))
    fake(driver).fail_at("step", times=9)
    requests = [driver.submit(prompt(8, i), max_tokens=5) for i in range(5)]
    driver.loop.run()
    assert isinstance(driver.loop.dead, EngineDead)
    assert all(driver.output(r).finish is FinishReason.ERROR for r in requests)
    assert fake(driver).closed
    leak_check(driver.scheduler, engine=driver.engine)


WRONG_RESULTS = {
    "missing": lambda outputs: {},
    "unplanned": lambda outputs: {**outputs, 99: SlotOutput((1,))},
    "too many tokens": lambda outputs: {k: SlotOutput((1, 2, 3)) for k in outputs},
    "no token": lambda outputs: {k: SlotOutput() for k in outputs},
    "token outside the vocabulary": lambda outputs: {k: SlotOutput((10**6,)) for k in outputs},
    "error with tokens": lambda outputs: {k: SlotOutput((1,), error="x") for k in outputs},
    "logprobs do not match": lambda outputs: {k: SlotOutput((1,), logprobs=()) for k in outputs},
    "not a result": None,
}


@pytest.mark.parametrize("name", WRONG_RESULTS)
def test_an_invalid_result_is_a_step_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = make(slots=1)
    request = driver.submit(prompt(8), max_tokens=5)
    after = driver.submit(prompt(8, 1), max_tokens=5)
    driver.step()
    change = WRONG_RESULTS[name]
    good = driver.engine.execute

    def wrong(lowered: object) -> object:
        result = good(lowered)
        return "nothing" if change is None else StepResult(change(dict(result.outputs)))

    monkeypatch.setattr(driver.engine, "execute", wrong)
    driver.step()
    monkeypatch.undo()
    assert driver.output(request).finish is FinishReason.ERROR
    assert driver.loop.step_faults == 1
    done(driver)
    assert driver.output(after).tokens == alone(prompt(8, 1), 5).tokens


def test_drain_lets_accepted_requests_finish_and_stop_cancels_them() -> None:
    driver = make(slots=1)
    requests = [driver.submit(prompt(8, i), max_tokens=4) for i in range(3)]
    driver.inbox.put(Drain())
    driver.loop.run()
    assert all(driver.output(r).finish is FinishReason.LENGTH for r in requests)
    driver = make(slots=1)
    requests = [driver.submit(prompt(8, i), max_tokens=4) for i in range(3)]
    driver.inbox.put(Stop())
    driver.loop.run()
    assert all(driver.output(r).finish is FinishReason.CANCELLED for r in requests)
    leak_check(driver.scheduler, engine=driver.engine)


# -- speculation -------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 3, 7, 15])
def test_greedy_text_with_drafts_is_greedy_text_without(width: int) -> None:
    import random

    random_source = random.Random(width)
    accept = [random_source.randint(0, width) for _ in range(97)]
    driver = make(
        slots=6, pool_blocks=400, max_draft=width, accept=accept, mind=HashMind(eos_every=40)
    )
    cases = [(prompt(random_source.randint(1, 60), i), i) for i in range(50)]
    requests = [driver.submit(p, max_tokens=40, stop_ids=[EOS]) for p, _ in cases]
    done(driver)
    plain = FakeEngine(mind=HashMind(eos_every=40))
    plain.allocate(64)
    for request, (ids, _) in zip(requests, cases, strict=True):
        expected = run_alone(plain, ids, max_tokens=40, pool_blocks=64, stop_ids=[EOS])
        assert driver.output(request).tokens == expected.tokens
        assert driver.output(request).finish == expected.finish
    assert sum(request.accepted for request in requests) > 0


def test_the_plan_caps_drafts_by_max_tokens_and_context() -> None:
    driver = make(max_draft=8, accept=(8,), max_context=64)
    request = driver.submit(prompt(4), max_tokens=4)
    done(driver)
    rows = [row for row in rows_of(fake(driver).plans, 0) if isinstance(row, DecodeRow)]
    assert [row.max_draft for row in rows] == [2]
    assert len(driver.output(request).tokens) == 4
    assert request.params is GREEDY
