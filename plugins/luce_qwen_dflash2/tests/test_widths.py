"""How many drafts are worth their cost: the choice itself, and what it learns."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest
from luce_qwen_dflash2.acceptance_watch import BLOCKS, AcceptanceWatch
from luce_qwen_dflash2.step_costs import StepCosts
from luce_qwen_dflash2.widths import (
    FIRST_ACCEPTANCE,
    TRIAL_SHARE,
    AdaptiveWidths,
    FixedWidths,
    Wish,
    best_widths,
    floored,
)

SLOTS, MOST = 5, 7


def costs(row: float, draft: float = 0.0, *, slots: int = SLOTS, most: int = MOST) -> StepCosts:
    """A step costs 1, `row` for each row behind the first, and `draft` if anything is drafted."""
    table: list[tuple[float, ...]] = [()]
    for n in range(1, slots + 1):
        with_drafts = (1 + row * (n + d - 1) + draft for d in range(1, n * most + 1))
        table.append((1 + row * (n - 1), *with_drafts))
    return StepCosts(tuple(table))


def rate(wishes: list[Wish], others: int, widths: list[int], price: StepCosts) -> float:
    """Tokens a second of a slot, as the harmonic mean of all: written down once more."""
    tokens = [1.0] * others + [
        sum(wish.acceptance**d for d in range(width + 1))
        for wish, width in zip(wishes, widths, strict=True)
    ]
    return statistics.harmonic_mean(tokens) / price.seconds(len(tokens), sum(widths))


def test_the_choice_is_the_best_of_all() -> None:
    chance = random.Random(4)
    drafted = 0
    for _ in range(150):
        most = [chance.randint(0, 3) for _ in range(chance.randint(1, 3))]
        wishes = [Wish(chance.uniform(0.02, 0.98), m) for m in most]
        others = chance.randint(0, 2)
        price = costs(chance.choice([0.01, 0.1, 0.3]), chance.choice([0.0, 0.1, 0.5]))
        widths = best_widths(wishes, others, price)
        plain = rate(wishes, others, [0] * len(wishes), price)
        best = max(
            rate(wishes, others, list(each), price)
            for each in itertools.product(*(range(m + 1) for m in most))
        )
        if any(widths):
            drafted += 1
            assert rate(wishes, others, widths, price) == pytest.approx(best)
            assert best >= 1.05 * plain
        else:
            assert best < 1.05 * plain * (1 + 1e-9)
    assert 30 < drafted < 130


def test_free_drafts_are_all_taken_and_dear_ones_not() -> None:
    wishes = [Wish(0.5, 7), Wish(0.02, 3), Wish(0.9, 0)]
    assert best_widths(wishes, 1, StepCosts.even(SLOTS, MOST)) == [7, 3, 0]
    assert best_widths(wishes, 1, costs(1.0)) == [0, 0, 0]
    assert best_widths([], 2, costs(0.1)) == []


def test_few_that_draft_well_do_not_make_many_wait() -> None:
    """A step of twice the time doubles the tokens of the one, and halves the pace of the others."""
    price = costs(0.1, 0.3)
    assert best_widths([Wish(0.95, 7)], 0, price)[0] > 3
    assert best_widths([Wish(0.95, 7)] * 5, 0, price)[0] > 3
    assert best_widths([Wish(0.95, 7), *[Wish(0.02, 7)] * 4], 0, price) == [0] * 5
    assert best_widths([Wish(0.95, 7)], 4, price) == [0]


def test_what_is_accepted_more_often_drafts_more() -> None:
    narrow, wide = best_widths([Wish(0.3, 7), Wish(0.9, 7)], 0, costs(0.05, 0.1))
    assert 0 < narrow < 3 < wide


def test_a_share_of_accepted_drafts_is_a_floor() -> None:
    for acceptance, share in itertools.product((0.1, 0.5, 0.8, 0.95), (0.0, 0.2, 0.5, 0.9)):
        width = floored(acceptance, MOST, share)
        shares = [sum(acceptance**d for d in range(1, k + 1)) / k for k in range(1, MOST + 1)]
        assert width == sum(each >= share for each in shares)
    widths = AdaptiveWidths(StepCosts.even(SLOTS, MOST), min_acceptance=0.6)
    room = {0: MOST}
    # 0.8, (0.8 + 0.64) / 2, (0.8 + 0.64 + 0.51) / 3; but not one more
    assert widths.choose(room, others=0, with_prompts=False) == {0: 3}


def test_a_slot_learns_from_its_own_drafts_and_begins_with_what_is_common() -> None:
    widths = AdaptiveWidths(costs(0.02, 0.01))
    widths.admit(0)
    widths.admit(1)
    for _ in range(60):
        widths.learn(0, 7, 7)
        widths.learn(1, 7, 0)
    assert widths.acceptance(0) > 0.97
    assert widths.acceptance(1) < 0.05
    chosen = widths.choose({0: 7, 1: 7}, others=0, with_prompts=False)
    assert chosen[0] >= 6
    assert 1 not in chosen
    for _ in range(40):  # as the first drafts of those before it were
        widths.admit(1)
        widths.learn(1, 4, 1)
    widths.admit(1)
    assert widths.acceptance(1) == pytest.approx(0.5, abs=0.01)
    assert widths.acceptance(0) > 0.97


def test_a_slot_whose_drafts_are_refused_stops_within_a_few_steps() -> None:
    for draft, most in ((0.1, 14), (0.5, 9), (2.0, 5)):
        widths = AdaptiveWidths(costs(0.05, draft))
        widths.admit(0)
        drafting = 0
        while width := widths.choose({0: MOST}, others=0, with_prompts=False).get(0):
            widths.learn(0, width, 0)
            drafting += 1
        assert 0 < drafting < most
        for _ in range(2):  # and goes on as quickly
            widths.learn(0, MOST, MOST)
        assert widths.choose({0: MOST}, others=0, with_prompts=False)[0] > 3


def test_rejected_drafts_say_nothing_of_those_behind() -> None:
    one, seven = AdaptiveWidths(costs(0.1)), AdaptiveWidths(costs(0.1))
    one.learn(0, 1, 0)
    seven.learn(0, 7, 0)
    assert one.acceptance(0) == seven.acceptance(0) < FIRST_ACCEPTANCE


def steps_of(widths: AdaptiveWidths, price: StepCosts, accepts: float, steps: int) -> tuple:
    """Tokens, seconds and drafting steps of one slot whose drafts are accepted at a rate."""
    chance = random.Random(9)
    tokens = seconds = drafting = 0.0
    widths.admit(0)
    for _ in range(steps):
        width = widths.choose({0: MOST}, others=0, with_prompts=False).get(0, 0)
        accepted = 0
        while accepted < width and chance.random() < accepts:
            accepted += 1
        if width:
            widths.learn(0, width, accepted)
        tokens += 1 + accepted
        seconds += price.seconds(1, width)
        drafting += width > 0
    return tokens, seconds, drafting


@pytest.mark.parametrize("row", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("draft", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("accepts", [0.0, 0.3, 0.6, 0.9])
def test_drafting_never_loses_noticeably(row: float, draft: float, accepts: float) -> None:
    price = costs(row, draft)
    tokens, seconds, _ = steps_of(AdaptiveWidths(price), price, accepts, 3000)
    assert tokens / seconds > 0.97 * 1 / price.seconds(1, 0)
    best = max(rate([Wish(accepts, MOST)], 0, [k], price) for k in range(MOST + 1))
    assert tokens / seconds > 0.9 * best


def test_slots_that_do_not_draft_try_again_for_a_share_of_the_time() -> None:
    price = costs(0.2, 1.0)
    widths = AdaptiveWidths(price)
    steps_of(widths, price, 0.0, 2000)
    widths.admit(0)
    tokens, seconds, drafting = steps_of(widths, price, 0.0, 5000)
    assert drafting > 20
    assert tokens / seconds == pytest.approx(1 - TRIAL_SHARE, abs=0.003)
    tokens, _, drafting = steps_of(widths, price, 0.97, 5000)
    assert drafting > 3000
    assert tokens > 15_000


def test_nobody_need_ask_as_long_as_nothing_would_be_drafted() -> None:
    """Steps that rest change nothing: the next try comes when it would have come."""
    price = costs(0.2, 1.0)
    asked, resting = AdaptiveWidths(price), AdaptiveWidths(price)
    for widths in (asked, resting):
        for _ in range(20):
            widths.learn(0, 7, 0)
    tries = []
    for step in range(2000):
        if asked.choose({0: MOST}, others=0, with_prompts=False):
            tries.append(step)
            asked.learn(0, 4, 0)
    step, found, asked_for = 0, [], 0
    while step < 2000:
        asked_for += 1
        if resting.choose({0: MOST}, others=0, with_prompts=False):
            found.append(step)
            resting.learn(0, 4, 0)
            assert resting.rest() < 1000
        else:
            steps = resting.rest()
            resting.rested(steps)
            step += steps
        step += 1
    assert len(tries) > 5
    assert found == tries
    assert asked_for < 5 * len(tries)


def test_what_goes_on_around_steps_counts() -> None:
    """Where every step waits as long again for something else, drafting pays that did not."""
    price = costs(0.1, 0.6)
    widths = AdaptiveWidths(price)
    for _ in range(3):
        widths.learn(0, 7, 0)
    assert not widths.choose({0: MOST}, others=0, with_prompts=False)
    widths.took(1, 2.0, steps=100)
    assert widths.choose({0: MOST}, others=0, with_prompts=False)
    widths.took(1, 1.0, steps=100)
    widths.took(1, 900.0, steps=100)  # somebody has stopped the process
    assert not widths.choose({0: MOST}, others=0, with_prompts=False)


def test_what_the_user_does_not_want_is_tried_rarely_even_if_it_pays() -> None:
    price = costs(0.01)
    widths = AdaptiveWidths(price, min_acceptance=0.9)
    for _ in range(200):
        widths.learn(0, 7, 2)
    _, _, drafting = steps_of(widths, price, 0.7, 2000)
    extra = price.seconds(1, 2) - price.seconds(1, 0)
    assert 0 < drafting < 2000 * 2 * TRIAL_SHARE / extra


def test_the_same_acceptances_give_the_same_widths() -> None:
    def run() -> list[dict[int, int]]:
        chance, widths = random.Random(3), AdaptiveWidths(costs(0.02, 0.1))
        chosen = []
        for step in range(300):
            if step % 50 == 0:
                widths.admit(step % 3)
            room = {slot: chance.randint(1, MOST) for slot in range(3)}
            chosen.append(widths.choose(room, others=1, with_prompts=step % 7 == 0))
            for slot, width in chosen[-1].items():
                widths.learn(slot, width, chance.randint(0, width))
        return chosen

    chosen = run()
    assert chosen == run()
    assert len({tuple(each.items()) for each in chosen}) > 10
    assert not any(chosen[::7])  # these steps carry prompts


def test_fixed_widths_keep_to_the_room() -> None:
    room = {2: 1, 4: 7}
    assert FixedWidths(3).choose(room, others=0, with_prompts=True) == {2: 1, 4: 3}
    assert FixedWidths(0).choose(room, others=0, with_prompts=False) == {}


def test_costs_follow_the_lines_through_what_was_measured() -> None:
    price = costs(0.1, 0.5, slots=6)
    kinds = [(n, k) for n in (1, 3, 6) for k in (0, 1, 3, 7)]
    runs = {(n, k): price.seconds(n, n * k) for n, k in kinds}
    ours = StepCosts.from_runs(runs, slots=6, max_draft=7)
    few = StepCosts.from_runs(
        {kind: runs[kind] for kind in kinds if kind[0] != 3 and kind[1] != 3}, slots=6, max_draft=7
    )
    for n in range(1, 7):
        assert len(ours.table[n]) == 1 + 7 * n
        for drafts in range(7 * n + 1):
            assert ours.seconds(n, drafts) == pytest.approx(price.seconds(n, drafts))
            assert few.seconds(n, drafts) == pytest.approx(price.seconds(n, drafts))
    only = StepCosts.from_runs({(1, 0): 1.0, (1, 1): 1.5}, slots=1, max_draft=1)
    assert only.table == ((), (1.0, 1.5))


def test_more_drafts_never_cost_less() -> None:
    noisy = {(1, 0): 1.0, (1, 1): 1.4, (1, 7): 1.2, (4, 0): 1.1, (4, 1): 0.9, (4, 7): 3.0}
    table = StepCosts.from_runs(noisy, slots=4, max_draft=7).table
    assert all(list(row) == sorted(row) for row in table)


def test_a_draft_that_never_fits_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = AcceptanceWatch()
    for _ in range(BLOCKS - 1):
        watch.add(7, 0)
    assert not caplog.records
    for _ in range(3 * BLOCKS):
        watch.add(7, 0)
    assert len(caplog.records) == 1
    assert "of the last 1400 drafts, 0 were accepted (0.0 %)" in caplog.text


def test_a_draft_that_fits_a_little_is_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    watch = AcceptanceWatch()
    for block in range(3 * BLOCKS):
        watch.add(7, block % 2)  # 7 % of the drafts
    assert not caplog.records
