"""How many drafts each slot has verified: as many as pay, by their acceptance and by step costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from luce_qwen_dflash2.seen_costs import SeenCosts
from luce_qwen_dflash2.step_costs import StepCosts

# A step that carries a prompt is long already: its decode rows wait for the prompt's rows, and what
# they would draft meanwhile delays the prompt's first token.
DRAFT_BESIDE_PROMPTS = False
# A draft of which nothing is known is taken for a good one: that it is not shows soon.
FIRST_ACCEPTANCE = 0.8
# One observed draft moves a slot's average by this share of the difference: texts change within a
# few steps between what a draft follows and what it does not. A new slot begins with what became of
# the first drafts of those before it, and that counts for as much as so many drafts of its own.
_SLOT_RATE = 1 / 16
_COMMON_RATE = 1 / 8
_COMMON_WEIGHT = 4
# Neither end is ever certain: a slot that is believed to accept nothing would not be tried again.
_LEAST, _MOST = 0.02, 0.98
# Drafting must promise this much more than a plain step: costs and averages are not exact.
_MARGIN = 1.05
# Slots that do not draft try it again, at an expected loss of this share of the time, and of less
# where the best of drafts would save little: of the cube of that, times the second number. A try
# may always turn out worse, so that no less than a part of what it can lose is expected.
TRIAL_SHARE = 0.025
_TRIAL_SAVINGS = 0.35
_LEAST_LOSS = 0.25
_TRIAL_DRAFTS = 4
_SHARES_LAST = 256


class Wish(NamedTuple):
    """A slot that may draft: the chance of a draft to be accepted once those before it are, and
    how many drafts it may have."""

    acceptance: float
    most: int


class Choice(NamedTuple):
    """The widths that pay, those with which the slots without drafts try it, the seconds that this
    loses if what is tried is rejected, and how many of them each step may."""

    widths: list[int]
    trial: list[int]
    loss_s: float
    credit_s: float


class Widths(Protocol):
    """Chooses the drafts of every step. Tokens never depend on the choice."""

    def admit(self, slot_id: int) -> None:
        """A new request begins in the slot."""

    def choose(self, room: Mapping[int, int], *, others: int, with_prompts: bool) -> dict[int, int]:
        """Drafts by slot id, at most `room[slot_id]` each; slots that are left out draft nothing.

        `others` slots decode in the same step and cannot draft; `with_prompts` says that it carries
        prompt rows too. Called once for each step that decodes.
        """
        raise AssertionError("a protocol is never called")

    def learn(self, slot_id: int, drafts: int, accepted: int) -> None:
        """What became of a slot's drafts."""

    def rest(self) -> int:
        """After a choice of nothing: how many more steps need not ask, as long as the same slots
        go on decoding and no prompt comes along."""
        raise AssertionError("a protocol is never called")

    def rested(self, steps: int) -> None:
        """So many steps did not ask."""

    def took(self, slots: int, seconds: float, *, steps: int) -> None:
        """`steps` steps without drafts of so many slots took so many seconds each, from the start
        of one to the start of the next."""


class FixedWidths:
    """The same number of drafts for every slot in every step, as far as there is room."""

    def __init__(self, most: int) -> None:
        self._most = most

    def admit(self, slot_id: int) -> None:
        """Nothing is known of any slot."""

    def choose(self, room: Mapping[int, int], *, others: int, with_prompts: bool) -> dict[int, int]:
        return {slot_id: min(self._most, space) for slot_id, space in room.items() if self._most}

    def learn(self, slot_id: int, drafts: int, accepted: int) -> None:
        """Nothing is learnt."""

    def rest(self) -> int:
        return 0

    def rested(self, steps: int) -> None:
        """Nothing is counted."""

    def took(self, slots: int, seconds: float, *, steps: int) -> None:
        """Nothing is learnt."""


class AdaptiveWidths:
    """Widths with which slots wait least for a token, from each slot's acceptance and step costs.

    A slot drafts no more than keeps its share of accepted drafts at `min_acceptance`. Slots that do
    not draft try again now and then: rarely where it is dear. The same costs, acceptances and step
    times give the same widths.
    """

    def __init__(self, costs: StepCosts, *, min_acceptance: float = 0.0) -> None:
        self._costs = SeenCosts(costs)
        self._min_acceptance = min_acceptance
        self._common = FIRST_ACCEPTANCE
        self._acceptance: dict[int, float] = {}
        self._seen: dict[int, int] = {}
        self._credit_s = 0.0
        self._situation: object = None
        self._shares: dict[int, float] = {}  # of the time, by slots, that trials may take
        self._old = 0
        self._choice = Choice([], [], 0.0, 0.0)

    def acceptance(self, slot_id: int) -> float:
        """The running average of a slot."""
        return self._acceptance.get(slot_id, self._common)

    def admit(self, slot_id: int) -> None:
        self._acceptance[slot_id] = self._common
        self._seen[slot_id] = _COMMON_WEIGHT

    def learn(self, slot_id: int, drafts: int, accepted: int) -> None:
        """Drafts behind the first rejected one say nothing."""
        average, seen = self.acceptance(slot_id), self._seen.get(slot_id, _COMMON_WEIGHT)
        outcomes = [1.0] * accepted + [0.0] * (accepted < drafts)
        if outcomes and seen == _COMMON_WEIGHT:
            difference = sum(outcomes) / len(outcomes) - self._common
            self._common = min(_MOST, max(_LEAST, self._common + _COMMON_RATE * difference))
        for outcome in outcomes:
            seen += 1
            average += max(_SLOT_RATE, 1 / seen) * (outcome - average)
        self._seen[slot_id] = seen
        self._acceptance[slot_id] = min(_MOST, max(_LEAST, average))

    def choose(self, room: Mapping[int, int], *, others: int, with_prompts: bool) -> dict[int, int]:
        if not room or (with_prompts and not DRAFT_BESIDE_PROMPTS):
            return {}
        situation = (tuple(room.items()), tuple(map(self.acceptance, room)), others)
        if situation != self._situation:
            # It stays the same as long as nobody drafts: then the choice must cost nothing.
            self._situation = situation
            self._choice = self._best(*situation)
        widths, trial, loss_s, credit_s = self._choice
        if trial != widths:
            self._credit_s = min(loss_s, self._credit_s + credit_s)
        if trial != widths and self._credit_s >= loss_s:
            self._credit_s = 0.0
            widths = trial
        return {slot_id: width for slot_id, width in zip(room, widths, strict=True) if width}

    def rest(self) -> int:
        widths, _, loss_s, credit_s = self._choice
        if any(widths) or not credit_s:
            return 0
        return max(0, int((loss_s - self._credit_s) / credit_s) - 1)

    def rested(self, steps: int) -> None:
        _, _, loss_s, credit_s = self._choice
        self._credit_s = min(loss_s, self._credit_s + steps * credit_s)

    def took(self, slots: int, seconds: float, *, steps: int) -> None:
        self._costs.took(slots, seconds, steps=steps)
        self._situation = None
        self._old += steps
        if self._old > _SHARES_LAST:
            self._shares.clear()
            self._old = 0

    def _best(
        self, room: Sequence[tuple[int, int]], acceptances: Sequence[float], others: int
    ) -> Choice:
        wishes = [
            Wish(acceptance, floored(acceptance, space, self._min_acceptance))
            for (_, space), acceptance in zip(room, acceptances, strict=True)
        ]
        slots = len(wishes) + others
        costs = self._costs.of(slots)
        widths = best_widths(wishes, others, costs)
        seconds, waiting = costs.seconds(slots, sum(widths)), others + mean_waits(wishes, widths)
        row_tokens = costs.row_seconds(slots) * slots**2 / waiting / seconds
        trial = [
            width or min(space, max(_TRIAL_DRAFTS, paying(wish, row_tokens)))
            for width, wish, (_, space) in zip(widths, wishes, room, strict=True)
        ]
        trial_s = costs.seconds(slots, sum(trial))
        worth_s = seconds * waiting / (others + mean_waits(wishes, trial)) / _MARGIN
        loss_s = max(trial_s - worth_s, _LEAST_LOSS * (trial_s - seconds))
        share = self._shares.get(slots)
        if share is None:
            at_best = [Wish(_MOST, space) for _, space in room]
            share = min(TRIAL_SHARE, _TRIAL_SAVINGS * savings(at_best, others, costs) ** 3)
            self._shares[slots] = share
        return Choice(widths, trial, loss_s, share * seconds)


def savings(wishes: Sequence[Wish], others: int, costs: StepCosts) -> float:
    """The share of the time that drafts save."""
    slots, widths = len(wishes) + others, best_widths(wishes, others, costs)
    waits = others + mean_waits(wishes, widths)
    return 1.0 - costs.seconds(slots, sum(widths)) * waits / (slots * costs.seconds(slots, 0))


def mean_waits(wishes: Sequence[Wish], widths: Sequence[int]) -> float:
    """Steps that a token takes on average, summed over the slots. Drafts that a slot should not
    have are worth nothing."""
    waits = 0.0
    for wish, width in zip(wishes, widths, strict=True):
        drafts = min(width, wish.most)
        waits += 1.0 / sum([wish.acceptance**draft for draft in range(drafts + 1)])
    return waits


def paying(wish: Wish, row_tokens: float) -> int:
    """Drafts that are accepted more often than the tokens that the time of a row is worth."""
    chances = (wish.acceptance**draft for draft in range(1, wish.most + 1))
    return sum(chance > row_tokens for chance in chances)


def best_widths(wishes: Sequence[Wish], others: int, costs: StepCosts) -> list[int]:
    """Drafts of each wish with which the slots wait least for a token, on the mean of all slots;
    all 0 if none pay.

    The d-th draft of a slot is accepted with its acceptance to the power of d. Drafts are taken in
    the order of what they spare their slot, which grows less with each: of all steps with as many
    rows, this one is the best. For slots that are alike, it is the step that yields most tokens a
    second. Where they are not, a step that makes few slots quick and lets the others wait for it
    must make up for that.
    """
    slots = len(wishes) + others
    spared: list[tuple[float, int]] = []
    for index, (acceptance, most) in enumerate(wishes):
        chance = tokens = before = 1.0
        for _ in range(most):
            chance *= acceptance
            tokens += chance
            spared.append((before - 1.0 / tokens, -index))
            before = 1.0 / tokens
    spared.sort(reverse=True)
    waits = float(slots)
    best_count, best_wait = 0, costs.seconds(slots, 0) * waits / _MARGIN
    for count, (steps, _) in enumerate(spared, 1):
        waits -= steps
        wait = costs.seconds(slots, count) * waits
        if wait <= best_wait:
            best_count, best_wait = count, wait
    widths = [0] * len(wishes)
    for _, index in spared[:best_count]:
        widths[-index] += 1
    return widths


def floored(acceptance: float, most: int, share: float) -> int:
    """The most drafts, up to `most`, of which at least `share` are accepted on average."""
    accepted, chance, drafts = 0.0, 1.0, 0
    for count in range(1, most + 1):
        chance *= acceptance
        accepted += chance
        if accepted < share * count:
            break
        drafts = count
    return drafts
