"""Many random prompts beside a draft: whoever joins, leaves or is cancelled, no token changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from luce_qwen_dflash2.engine import QwenEngine
from luce_qwen_dflash2.replayed import ReplayedDrafts

from luce_core.request import FinishReason, Request, SamplingParams
from luce_core.testing.driver import Driver, run_alone
from luce_core.testing.leak_check import leak_check
from luce_core.weights.model_ref import resolve_model

VOCAB = 320
BLOCKS = 128
Pair = tuple[Path, Path]
Known = dict[tuple[int, ...], list[int]]


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(f"{length} {salt}").choices(range(250), k=length))


def known_texts(
    engine: QwenEngine, prompts: list[tuple[int, ...]], new: int, params: list[SamplingParams]
) -> Known:
    """What an engine without drafts generates, each prompt alone."""
    return {
        each: list(run_alone(engine, each, max_tokens=new, params=how, pool_blocks=BLOCKS).tokens)
        for each, how in zip(prompts, params, strict=True)
    }


def randomly_driven(
    engine: QwenEngine,
    prompts: list[tuple[int, ...]],
    params: list[SamplingParams],
    *,
    new: int,
    seed: int,
    company: int = 6,
) -> list[Request]:
    """All prompts, at most `company` at once; they join at random times, some are cancelled."""
    chance = random.Random(seed)
    driver = Driver(engine, pool_blocks=BLOCKS)
    requests: list[Request] = []
    while len(requests) < len(prompts) or any(r.finish is None for r in requests):
        live = [r for r in requests if r.finish is None]
        if len(requests) < len(prompts) and len(live) < company and chance.random() < 0.6:
            at = len(requests)
            requests.append(driver.submit(prompts[at], max_tokens=new, params=params[at]))
        if live and chance.random() < 0.02:
            driver.cancel(chance.choice(live))
        driver.step()
    leak_check(driver.scheduler, engine=engine)
    return requests


@pytest.fixture(scope="module")
def draw_prompts() -> Callable[[int], list[tuple[int, ...]]]:
    def draw(count: int) -> list[tuple[int, ...]]:
        chance = random.Random(17)
        return [prompt(chance.randint(1, 60), salt) for salt in range(count)]

    return draw


@pytest.fixture(scope="module")
def texts_of() -> dict[tuple[str, float], Known]:
    """By ops and temperature: what no draft has a part in is generated once for all widths."""
    return {}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafts", [1, 3, 7])
@pytest.mark.parametrize(("ops", "count"), [("row_by_row", 18), ("native_ops", 200)])
def test_joins_and_cancels_among_drafting_slots_change_no_tokens(
    ops: str,
    count: int,
    drafts: int,
    temperature: float,
    tiny_pair: Pair,
    load: Any,
    draw_prompts: Any,
    texts_of: dict[tuple[str, float], Known],
    request: pytest.FixtureRequest,
) -> None:
    """Batch sizes from 1 to 6; what is proposed is partly right, at the draft's full cost."""
    target, draft = tiny_pair
    registry = request.getfixturevalue(ops)
    prompts, new = draw_prompts(count), 20
    params = [SamplingParams(temperature=temperature, seed=seed) for seed in range(count)]
    if (ops, temperature) not in texts_of:
        alone = load(target, registry=registry(), blocks=BLOCKS)
        texts_of[ops, temperature] = known_texts(alone, prompts, new, params)
    known = texts_of[ops, temperature]
    replayed = ReplayedDrafts(known, corruption=0.25, vocab_size=VOCAB)
    engine = load(
        target,
        draft=draft,
        drafts=replayed,
        block_size=1 + drafts,
        registry=registry(),
        blocks=BLOCKS,
    )
    assert engine.capabilities.max_draft == drafts
    share = count // 6
    whole = accepted = 0
    for company in range(1, 7):
        part = slice((company - 1) * share, company * share if company < 6 else None)
        requests = randomly_driven(
            engine, prompts[part], params[part], new=new, seed=company, company=company
        )
        for each in requests:
            assert each.generated == known[each.prompt][: len(each.generated)]
            whole += each.finish is FinishReason.LENGTH
            accepted += each.accepted
    assert whole > count / 2
    assert accepted > count


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_drafts_own_proposals_change_no_tokens(
    temperature: float, tiny_pair: Pair, load: Any, row_by_row: Any, draw_prompts: Any
) -> None:
    target, draft = tiny_pair
    prompts = draw_prompts(8)
    params = [SamplingParams(temperature=temperature, seed=seed) for seed in range(8)]
    known = known_texts(load(target, registry=row_by_row(), blocks=BLOCKS), prompts, 16, params)
    engine = load(target, draft=draft, registry=row_by_row(), blocks=BLOCKS)
    for request in randomly_driven(engine, prompts, params, new=16, seed=1):
        assert request.generated == known[request.prompt][: len(request.generated)]
        assert request.proposed or len(request.generated) < 2


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_trained_drafts_own_proposals_change_no_tokens(
    temperature: float, load: Any, native_ops: Any, draw_prompts: Any
) -> None:
    """On native kernels: some of what is proposed is right, and some is not."""
    target, draft = (
        resolve_model(f"pkg:luce_qwen_dflash2/tiny-code{end}.gguf") for end in ("", "-dflash2")
    )
    prompts, new = draw_prompts(60), 24
    params = [SamplingParams(temperature=temperature, seed=seed) for seed in range(60)]
    known = known_texts(load(target, registry=native_ops(), blocks=BLOCKS), prompts, new, params)
    engine = load(target, draft=draft, registry=native_ops(), blocks=BLOCKS)
    requests = randomly_driven(engine, prompts, params, new=new, seed=2)
    for request in requests:
        assert request.generated == known[request.prompt][: len(request.generated)]
    accepted = sum(request.accepted for request in requests)
    assert 60 < accepted < sum(request.proposed for request in requests) - 60
