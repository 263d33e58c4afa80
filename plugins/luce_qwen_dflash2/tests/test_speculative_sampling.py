"""With a draft, text is distributed as without one: after every filter, the first token too."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from luce_qwen_dflash2.drafting import DraftSource
from luce_qwen_dflash2.engine import QwenEngine

from luce_core.batch.packed import PackedBatch
from luce_core.request import Request, SamplingParams
from luce_core.testing.driver import Driver

PROMPT = (5, 90, 17, 33)
LENGTH = 3
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

    def __init__(self, engine: QwenEngine, params: SamplingParams) -> None:
        self._engine = engine
        self._params = params
        self._run = engine._run
        self._seen: torch.Tensor = torch.empty(0)
        engine._run = self._keep

    def _keep(self, batch: PackedBatch) -> tuple[torch.Tensor, ...]:
        results: tuple[torch.Tensor, ...] = self._run(batch)
        self._seen = results[0].clone()
        return results

    def chances(self) -> dict[Text, float]:
        found: dict[Text, float] = {(): 1.0}
        for _ in range(LENGTH):
            longer = {}
            for text, chance in found.items():
                driver = Driver(self._engine, pool_blocks=64)
                driver.submit((*PROMPT, *text), max_tokens=1)
                driver.run()
                for token, more in kept(self._seen[0], self._params, text).items():
                    longer[*text, token] = chance * more
            found = longer
        return found


def chi_square(counts: Counter[Text], chances: Mapping[Text, float], runs: int) -> float:
    """The p-value by Wilson and Hilferty's normal approximation; rare values in one bin."""
    bins, rare_count, rare_chance = [], 0, 0.0
    for value, chance in chances.items():
        if chance * runs < 5:
            rare_count, rare_chance = rare_count + counts[value], rare_chance + chance
        else:
            bins.append((counts[value], chance))
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


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("setting", "runs"),
    [("top_k", 300), *[pytest.param(each, 20_000, marks=pytest.mark.slow) for each in SETTINGS]],
)
def test_texts_are_distributed_as_without_a_draft(
    setting: str, runs: int, tiny_pair: Pair, load: Any, row_by_row: Any
) -> None:
    target, draft = tiny_pair
    params = SETTINGS[setting]
    chances = Oracle(load(target, registry=row_by_row()), params).chances()
    plain = load(target, registry=row_by_row())
    known = texts(plain, [replace(params, seed=seed) for seed in range(-9, 0)])
    engine = load(target, draft=draft, drafts=guesses_of(known), registry=row_by_row())
    driver = Driver(engine, pool_blocks=64)
    requests = [
        driver.submit(PROMPT, max_tokens=LENGTH, params=replace(params, seed=seed))
        for seed in range(runs)
    ]
    driver.run()
    assert sum(request.accepted for request in requests) > runs / 30
    found = [tuple(request.generated) for request in requests]
    assert set(found) <= set(chances)
    for places in ((0,), (1,), (2,), (0, 1), (1, 2)):
        expected: Counter[Text] = Counter()
        for text, chance in chances.items():
            expected[tuple(text[place] for place in places)] += chance
        counts = Counter(tuple(text[place] for place in places) for text in found)
        assert chi_square(counts, expected, runs) > 0.001, places


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
