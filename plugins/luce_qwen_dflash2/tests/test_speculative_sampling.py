"""With a draft, text is distributed as without one: after every filter, the first token too."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from luce_qwen_dflash2.drafting import DraftSource
from luce_qwen_dflash2.engine import QwenEngine

from luce_core.ops.registry import OpRegistry
from luce_core.request import Request, SamplingParams
from luce_core.testing.driver import Driver

PROMPT = (5, 90, 17, 33)
LENGTH = 3
SLOTS = 64
Pair = tuple[Path, Path]
Text = tuple[int, ...]


def texts(engine: QwenEngine, params: list[SamplingParams], length: int = LENGTH) -> list[Text]:
    driver = Driver(engine, pool_blocks=64)
    requests = [driver.submit(PROMPT, max_tokens=length, params=how) for how in params]
    driver.run()
    return [tuple(request.generated) for request in requests]


def kept(logits: torch.Tensor, params: SamplingParams, text: Text) -> dict[int, float]:
    """The distribution of the next token, written down from the settings alone."""
    scores = logits.double().clone()
    for token, bias in params.logit_bias:
        scores[token] += bias
    for token in {*PROMPT, *text}:
        value = scores[token]
        penalty = params.repetition_penalty
        scores[token] = value / penalty if value > 0 else value * penalty
    for token, count in Counter(text).items():
        scores[token] -= params.presence_penalty + params.frequency_penalty * count
    scores /= params.temperature
    chances = scores.softmax(0)
    chances[chances < params.min_p * chances.max()] = 0
    if params.top_k:
        floor = chances.topk(params.top_k).values[-1]
        chances[chances < floor] = 0
    chances /= chances.sum()
    return {int(token): float(chances[token]) for token in chances.nonzero()[:, 0]}


class Oracle:
    """Chances of whole texts, from the logits of a target that never drafts."""

    def __init__(self, engine: QwenEngine, watched: Any, params: SamplingParams) -> None:
        self._engine = engine
        self._watched = watched
        self._params = params

    def chances(self) -> dict[Text, float]:
        found: dict[Text, float] = {(): 1.0}
        for _ in range(LENGTH):
            longer = {}
            for (text, chance), logits in zip(found.items(), self._logits(found), strict=True):
                for token, more in kept(logits, self._params, text).items():
                    longer[*text, token] = chance * more
            found = longer
        return found

    def _logits(self, found: Mapping[Text, float]) -> list[torch.Tensor]:
        """Those behind each text. Greedy requests would need none."""
        driver = Driver(self._engine, pool_blocks=SLOTS)
        prompts = [(*PROMPT, *text) for text in found]
        requests = [driver.submit(each, max_tokens=1, params=self._params) for each in prompts]
        driver.run()
        return [self._watched.logits[r.id][len(r.prompt) - 1] for r in requests]


def chi_square(counts: Mapping[Text, int], chances: Mapping[Text, float], runs: int) -> float:
    """The p-value by Wilson and Hilferty's normal approximation; rare values in one bin."""
    bins, rare_count, rare_chance = [], 0, 0.0
    for value, chance in chances.items():
        if chance * runs < 5:
            rare_count, rare_chance = rare_count + counts.get(value, 0), rare_chance + chance
        else:
            bins.append((counts.get(value, 0), chance))
    if rare_chance * runs >= 1:
        bins.append((rare_count, rare_chance))
    statistic = sum((seen - c * runs) ** 2 / (c * runs) for seen, c in bins)
    freedom = len(bins) - 1
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))


SETTINGS = {
    "top_k": SamplingParams(temperature=1.0, top_k=5),
    "min_p": SamplingParams(temperature=1.0, min_p=0.5),
    "penalties": SamplingParams(
        temperature=0.7, top_k=6, repetition_penalty=1.4, presence_penalty=0.5,
        frequency_penalty=0.3,
    ),
    "bias": SamplingParams(temperature=0.8, top_k=5, logit_bias=((17, 1.5), (90, -100.0))),
}  # fmt: skip


def guesses_of(known: list[Text]) -> DraftSource:
    """Proposes for a request what one of another seed has generated: right now and then."""

    def guess(request: Request, width: int) -> list[int]:
        done = len(request.generated)
        follow = known[request.params.seed % len(known)][done : done + width]
        return [*follow, *[0] * (width - len(follow))]

    return guess


def likeliest(chances: Mapping[Text, float]) -> DraftSource:
    """Proposes what most often follows: nearly as often wrong as right."""
    follow: dict[Text, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for text, chance in chances.items():
        for place, token in enumerate(text):
            follow[text[:place]][token] += chance

    def guess(request: Request, width: int) -> list[int]:
        text = tuple(request.generated)
        while len(text) < len(request.generated) + width:
            known = follow.get(text, {0: 1.0})
            text = (*text, max(known, key=known.__getitem__))
        return list(text[len(request.generated) :])

    return guess


class Sampled(NamedTuple):
    """What many seeds gave, and how likely every text is without a draft."""

    requests: list[Request]
    chances: dict[Text, float]

    def worst(self) -> float:
        """The least p-value of any place and any two neighbours; 0 for a text that cannot be."""
        found = [tuple(request.generated) for request in self.requests]
        if not set(found) <= set(self.chances):
            return 0.0
        least = 1.0
        for places in ((0,), (1,), (2,), (0, 1), (1, 2)):
            expected: dict[Text, float] = defaultdict(float)
            for text, chance in self.chances.items():
                expected[tuple(text[place] for place in places)] += chance
            counts = Counter(tuple(text[place] for place in places) for text in found)
            least = min(least, chi_square(counts, expected, len(found)))
        return least


@pytest.fixture
def sample(tiny_pair: Pair, load: Any, watch: Any) -> Callable[..., Sampled]:
    """sample(params, runs, registry, spoil): `spoil` may break the engine that drafts."""
    target, draft = tiny_pair

    def run(
        params: SamplingParams,
        runs: int,
        registry: Callable[[], OpRegistry],
        spoil: Callable[[QwenEngine], None] | None = None,
    ) -> Sampled:
        many = {"slots": SLOTS, "blocks": SLOTS}
        plain = load(target, registry=registry(), **many)
        chances = Oracle(plain, watch(plain), params).chances()
        engine = load(target, draft=draft, drafts=likeliest(chances), registry=registry(), **many)
        if spoil is not None:
            spoil(engine)
        driver = Driver(engine, pool_blocks=SLOTS)
        requests = [
            driver.submit(PROMPT, max_tokens=LENGTH, params=replace(params, seed=seed))
            for seed in range(runs)
        ]
        driver.run()
        return Sampled(requests, chances)

    return run


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("setting", SETTINGS)
def test_texts_are_distributed_as_without_a_draft(
    setting: str, sample: Any, native_ops: Any
) -> None:
    check(sample(SETTINGS[setting], 20_000, native_ops))


def test_few_texts_are_distributed_as_without_a_draft(sample: Any, ops_registry: Any) -> None:
    """Of a size for every day, and for machines without compiled kernels."""
    check(sample(SETTINGS["top_k"], 300, ops_registry))


def check(sampled: Sampled) -> None:
    accepted = sum(request.accepted for request in sampled.requests)
    refused = sum(request.proposed for request in sampled.requests) - accepted
    assert min(accepted, refused) > len(sampled.requests) / 10
    assert sampled.worst() > 0.001


def without_filters(engine: QwenEngine) -> None:
    rules_of = engine._sampler.admit

    def admit(slot_id: int, request: Request) -> None:
        rules_of(slot_id, replace(request, params=replace(request.params, top_k=0)))

    engine._sampler.admit = admit


def first_token_by_argmax(engine: QwenEngine) -> None:
    accept = engine._sampler.accept

    def chosen(logits: Any, starts: Any, slots: Any, drafts: Any, greedy: Any) -> Any:
        results = accept(logits, starts, slots, drafts, greedy)
        for place, slot in enumerate(slots):
            if not engine._requests[slot].generated and results[place].tokens:
                best = int(logits[starts[place]].argmax())
                results[place] = results[place]._replace(tokens=(best,))
        return results

    engine._sampler.accept = chosen


def drafts_accepted_unseen(engine: QwenEngine) -> None:
    """Every other time, whatever was drawn."""
    accept, calls = engine._sampler.accept, 0

    def chosen(logits: Any, starts: Any, slots: Any, drafts: Any, greedy: Any) -> Any:
        nonlocal calls
        calls += 1
        results = accept(logits, starts, slots, drafts, greedy)
        for place, drafted in enumerate(drafts):
            if drafted and calls % 2:
                tokens = (drafted[0], *results[place].tokens[1:])
                results[place] = results[place]._replace(tokens=tokens)
        return results

    engine._sampler.accept = chosen


@pytest.mark.parametrize(
    "spoil",
    [without_filters, first_token_by_argmax, drafts_accepted_unseen],
    ids=lambda f: f.__name__,
)
def test_what_others_have_done_wrong_would_be_seen(
    spoil: Any, sample: Any, ops_registry: Any
) -> None:
    assert sample(SETTINGS["top_k"], 300, ops_registry, spoil).worst() < 1e-6


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 0.0001}], ids=str)
def test_the_narrowest_filter_gives_the_greedy_text(
    narrow: dict[str, Any], tiny_pair: Pair, load: Any, row_by_row: Any
) -> None:
    target, draft = tiny_pair
    greedy = texts(load(target, registry=row_by_row()), [SamplingParams(temperature=0.0)], 20)
    engine = load(target, draft=draft, registry=row_by_row())
    sampled = [SamplingParams(temperature=1.0, seed=seed, **narrow) for seed in range(6)]
    assert texts(engine, sampled, 20) == greedy * 6


@pytest.mark.parametrize("setting", ["penalties", "bias"])
def test_a_seed_gives_the_same_text_with_a_draft_and_without(
    setting: str, tiny_pair: Pair, load: Any, row_by_row: Any
) -> None:
    target, draft = tiny_pair
    seeded = [replace(SETTINGS[setting], seed=seed) for seed in range(6)]
    plain = texts(load(target, registry=row_by_row()), seeded, 20)
    engine = load(target, draft=draft, drafts=guesses_of(plain[::-1]), registry=row_by_row())
    own = load(target, draft=draft, registry=row_by_row())
    for drafting in (engine, own, own):
        assert texts(drafting, seeded, 20) == plain
    assert len(set(plain)) > 1
