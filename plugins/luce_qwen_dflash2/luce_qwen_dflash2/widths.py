"""How many drafts each slot has verified: as many as pay, by their acceptance and by step costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from luce_qwen_dflash2.step_costs import StepCosts

# A step that carries a prompt is long already: its decode rows wait for the prompt's rows, and what
# they would draft meanwhile delays the prompt's first token.
DRAFT_BESIDE_PROMPTS = False
# A draft of which nothing is known is taken for a good one: that it is not shows soon.
FIRST_ACCEPTANCE = 0.8
# One observed draft moves a slot's average by this share of the difference, and by more where
# observations are rare. A new slot begins with the average of all, which moves more slowly.
_SLOT_RATE = 1 / 16
_TRIAL_RATE = 1 / 8
_COMMON_RATE = 1 / 64
# Neither end is ever certain: a slot that is believed to accept nothing would not be tried again.
_LEAST, _MOST = 0.02, 0.98
# Drafting must promise this much more than a plain step: costs and averages are not exact.
_MARGIN = 1.03
# Slots that do not draft try it again, at an expected loss of this share of the time.
TRIAL_SHARE = 0.01
_TRIAL_DRAFTS = 2


class Wish(NamedTuple):
    """A slot that may draft: the chance of a draft to be accepted once those before it are, and
    how many drafts it may have."""

    acceptance: float
    most: int


class Choice(NamedTuple):
    """The widths that pay, those with which the slots without drafts try it, the seconds of the
    former step, and what the latter is expected to lose against it."""

    widths: list[int]
    trial: list[int]
    seconds: float
    loss_s: float


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


class AdaptiveWidths:
    """Widths that give the most tokens a second, from each slot's acceptance and measured costs.

    A slot drafts no more than keeps its share of accepted drafts at `min_acceptance`. Slots that do
    not draft try again now and then: rarely where it is dear, often where it nearly pays. What is
    chosen depends on the costs and on what was learnt, never on a clock.
    """

    def __init__(self, costs: StepCosts, *, min_acceptance: float = 0.0) -> None:
        self._costs = costs
        self._min_acceptance = min_acceptance
        self._common = FIRST_ACCEPTANCE
        self._acceptance: dict[int, float] = {}
        self._trying: frozenset[int] = frozenset()
        self._credit_s = 0.0
        self._situation: object = None
        self._choice = Choice([], [], 0.0, 0.0)

    def acceptance(self, slot_id: int) -> float:
        """The running average of a slot."""
        return self._acceptance.get(slot_id, self._common)

    def admit(self, slot_id: int) -> None:
        self._acceptance[slot_id] = self._common

    def learn(self, slot_id: int, drafts: int, accepted: int) -> None:
        """Drafts behind the first rejected one say nothing."""
        average = self.acceptance(slot_id)
        rate = _TRIAL_RATE if slot_id in self._trying else _SLOT_RATE
        outcomes = [1.0] * accepted + [0.0] * (accepted < drafts)
        for outcome in outcomes:
            average += rate * (outcome - average)
            self._common += _COMMON_RATE * (outcome - self._common)
        self._acceptance[slot_id] = min(_MOST, max(_LEAST, average))
        self._common = min(_MOST, max(_LEAST, self._common))

    def choose(self, room: Mapping[int, int], *, others: int, with_prompts: bool) -> dict[int, int]:
        self._trying = frozenset()
        if not room or (with_prompts and not DRAFT_BESIDE_PROMPTS):
            return {}
        situation = (tuple(room.items()), tuple(map(self.acceptance, room)), others)
        if situation != self._situation:
            # It stays the same as long as nobody drafts: then the choice must cost nothing.
            self._situation = situation
            self._choice = self._best(*situation)
        widths, trial, seconds, loss_s = self._choice
        if trial != widths:
            self._credit_s = min(loss_s, self._credit_s + TRIAL_SHARE * seconds)
        if trial != widths and self._credit_s >= loss_s:
            self._credit_s = 0.0
            pairs = zip(room, widths, trial, strict=True)
            self._trying = frozenset(slot_id for slot_id, now, then in pairs if then > now)
            widths = trial
        return {slot_id: width for slot_id, width in zip(room, widths, strict=True) if width}

    def _best(
        self, room: Sequence[tuple[int, int]], acceptances: Sequence[float], others: int
    ) -> Choice:
        wishes = [
            Wish(acceptance, floored(acceptance, space, self._min_acceptance))
            for (_, space), acceptance in zip(room, acceptances, strict=True)
        ]
        slots, costs = len(wishes) + others, self._costs
        widths = best_widths(wishes, others, costs)
        seconds = costs.seconds(slots, sum(widths))
        tokens = others + sum(map(expected_tokens, wishes, widths))
        row_tokens = costs.row_seconds(slots) * tokens / seconds
        trial = [
            width or min(space, max(_TRIAL_DRAFTS, paying(wish, row_tokens)))
            for width, wish, (_, space) in zip(widths, wishes, room, strict=True)
        ]
        trial_tokens = others + sum(map(expected_tokens, wishes, trial))
        worth_s = seconds * trial_tokens / tokens / _MARGIN
        return Choice(widths, trial, seconds, costs.seconds(slots, sum(trial)) - worth_s)


def expected_tokens(wish: Wish, width: int) -> float:
    """What a slot yields in a step: its accepted drafts and the token behind them. Drafts that it
    should not have are worth nothing."""
    drafts = min(width, wish.most)
    return float(sum(wish.acceptance**draft for draft in range(drafts + 1)))


def paying(wish: Wish, row_tokens: float) -> int:
    """Drafts that are accepted more often than the tokens that the time of a row is worth."""
    chances = (wish.acceptance**draft for draft in range(1, wish.most + 1))
    return sum(chance > row_tokens for chance in chances)


def best_widths(wishes: Sequence[Wish], others: int, costs: StepCosts) -> list[int]:
    """Drafts of each wish so that the step yields most tokens a second; all 0 if none pay.

    The d-th draft of a slot is accepted with its acceptance to the power of d. Drafts are taken in
    the order of that chance: of all steps with as many rows, this one yields most.
    """
    slots = len(wishes) + others
    chances = sorted(
        (-(wish.acceptance**draft), draft, index)
        for index, wish in enumerate(wishes)
        for draft in range(1, wish.most + 1)
    )
    tokens = float(slots)
    best_count, best_rate = 0, _MARGIN * tokens / costs.seconds(slots, 0)
    for count, (chance, _, _) in enumerate(chances, 1):
        tokens -= chance
        rate = tokens / costs.seconds(slots, count)
        if rate >= best_rate:
            best_count, best_rate = count, rate
    widths = [0] * len(wishes)
    for _, _, index in chances[:best_count]:
        widths[index] += 1
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
