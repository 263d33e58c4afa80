"""A draft beside the target: the same tokens, blocks behind the last token, and a draft that has
seen every durable row and nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from luce_qwen_dflash2.draft.backlog import Kept
from luce_qwen_dflash2.draft.draft import INJECT_ROWS, Anchor, Draft
from luce_qwen_dflash2.draft.loaded import LoadedDraft
from luce_qwen_dflash2.engine import QwenEngine
from luce_qwen_dflash2.replayed import ReplayedDrafts
from luce_qwen_dflash2.step_costs import StepCosts
from luce_qwen_dflash2.synthetic import SyntheticHybrid, write_hybrid
from luce_qwen_dflash2.testing import inject
from luce_qwen_dflash2.widths import AdaptiveWidths, FixedWidths

from luce_core.request import Request, SamplingParams
from luce_core.sampling.noise import row_key
from luce_core.testing.driver import Driver, run_alone
from luce_core.testing.leak_check import leak_check

VOCAB, MASK = 320, 319
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


def greedy(count: int) -> list[SamplingParams]:
    return [SamplingParams(temperature=0.0)] * count


class Spy:
    """Keeps what an engine asks of its draft, and what the draft answered."""

    def __init__(self, engine: QwenEngine) -> None:
        self.blocks: list[tuple[Anchor, list[int]]] = []
        self.rows: list[list[int]] = []  # token ids of each pass
        self.fails = False
        draft = engine._drafting._draft
        propose, run = draft.propose, draft._propose

        def spied(anchors: list[Anchor]) -> list[list[int]]:
            if self.fails:
                raise RuntimeError("no drafts today")
            answers = propose(anchors)
            self.blocks += zip(anchors, answers, strict=True)
            return answers

        def spied_run(batch: Any) -> Any:
            self.rows.append(batch.token_ids.tolist())
            return run(batch)

        draft.propose, draft._propose = spied, spied_run


def fresh_draft(engine: QwenEngine) -> Draft:
    """Another draft of the same weights, with rings of its own."""
    loaded: LoadedDraft = engine._loaded_draft
    return loaded.allocate(max_step_rows=256)


class Features:
    """The target's features of a text, computed in one pass by another engine."""

    def __init__(self, engine: QwenEngine) -> None:
        self._engine = engine
        self._run = engine._run
        engine._run = self._keep
        self._seen: torch.Tensor = torch.empty(0)

    def _keep(self, batch: Any) -> Any:
        results, backlog = self._run(batch), self._engine._drafting._draft.backlog
        self._seen = backlog.rows[backlog.places.tensor[: batch.rows]]
        return results

    def of(self, tokens: list[int]) -> torch.Tensor:
        driver = Driver(self._engine, pool_blocks=BLOCKS)
        driver.submit(tokens, max_tokens=1)
        driver.run()
        return self._seen


def test_every_block_is_what_a_draft_proposes_that_reads_the_text_in_one_go(
    tiny_pair: Pair, load: Any, row_by_row: Any
) -> None:
    """Prompts, plain rows, accepted and rejected drafts, company: the ring holds the text."""
    target, draft = tiny_pair
    prompts = [prompt(length, 3) for length in (5, 40, 63, 90)]
    plain = load(target, registry=row_by_row(), blocks=BLOCKS)
    known = known_texts(plain, prompts, 40, greedy(4))
    replayed = ReplayedDrafts(known, corruption=0.3, vocab_size=VOCAB)
    engine = load(target, draft=draft, drafts=replayed, registry=row_by_row(), blocks=BLOCKS)
    spy = Spy(engine)
    driver = Driver(engine, pool_blocks=BLOCKS)
    requests = []
    for each in prompts:  # the later ones join while others draft, which then go on plainly
        requests.append(driver.submit(each, max_tokens=40))
        driver.step()
        driver.step()
        driver.step()
    driver.run()
    texts = {slot: [*each, *known[each]] for slot, each in enumerate(prompts)}
    assert sum(request.accepted for request in requests) > 40
    features = Features(load(target, draft=draft, registry=row_by_row(), blocks=BLOCKS))
    oracle = fresh_draft(engine)
    seen = {slot: features.of(text) for slot, text in texts.items()}
    assert len(spy.blocks) > 40
    for anchor, block in spy.blocks:
        text = texts[anchor.slot_id]
        assert anchor.token == text[anchor.position]
        oracle.reset(0)
        with torch.inference_mode():
            inject(oracle, seen[anchor.slot_id], [Kept(0, 0, 0, anchor.position)])
            assert oracle.propose([anchor._replace(slot_id=0)]) == [block]


def test_blocks_hold_the_last_token_and_masks_in_every_situation(
    tiny_pair: Pair, load: Any, row_by_row: Any
) -> None:
    """Right after the prompt, after all drafts were accepted, after the first was rejected."""
    target, draft = tiny_pair
    text = prompt(30)
    known = known_texts(load(target, registry=row_by_row()), [text], 120, greedy(1))[text]
    rejected = 0

    def by_turns(request: Request, width: int) -> list[int]:
        nonlocal rejected
        done = len(request.generated)
        right = known[done : done + width]
        if len(spy.blocks) % 2 and right:
            rejected += 1
            return [(right[0] + 1) % VOCAB] * width
        return right

    engine = load(target, draft=draft, drafts=by_turns, registry=row_by_row())
    spy = Spy(engine)
    driver = Driver(engine, pool_blocks=64)
    request = driver.submit(text, max_tokens=120)
    driver.run()
    assert request.generated == known
    assert rejected > 10
    assert request.accepted > 60
    whole = [*text, *known]
    assert spy.blocks[0][0].position == len(text)
    steps = zip(spy.blocks, spy.rows, strict=True)
    for (anchor, block), rows in steps:
        assert rows == [whole[anchor.position], *[MASK] * len(block)]
    advances = [
        after.position - before.position
        for (before, _), (after, _) in zip(spy.blocks, spy.blocks[1:], strict=False)
    ]
    assert {1, 8} <= set(advances)
    assert len(spy.blocks) >= 25


def test_fifty_cycles_of_a_sampled_text_begin_with_its_last_token(
    tiny_pair: Pair, load: Any
) -> None:
    target, draft = tiny_pair
    engine = load(target, draft=draft)
    spy = Spy(engine)
    driver = Driver(engine, pool_blocks=64)
    params = SamplingParams(temperature=1.0, seed=3)
    request = driver.submit(prompt(9), max_tokens=60, params=params)
    driver.run()
    whole = [*request.prompt, *request.generated]
    assert len(spy.rows) >= 50
    for (anchor, block), rows in zip(spy.blocks, spy.rows, strict=True):
        assert rows == [whole[anchor.position], *[MASK] * len(block)]
        assert anchor.noise.temperature == 1.0
        ahead = anchor.position - len(request.prompt) + 1
        keys = tuple(row_key(3, 0, ahead + draft) for draft in range(len(block)))
        assert anchor.noise.keys == keys


def test_all_drafting_slots_share_one_pass(tiny_pair: Pair, load: Any) -> None:
    target, draft = tiny_pair
    engine = load(target, draft=draft)
    spy = Spy(engine)
    driver = Driver(engine, pool_blocks=64)
    for length in (5, 9, 13):
        driver.submit(prompt(length), max_tokens=20)
    driver.step()
    driver.step()
    assert [len(rows) for rows in spy.rows] == [3 * 8]


def test_a_joining_request_moves_no_tokens_and_a_leaving_one_no_state(
    tiny_pair: Pair, load: Any, row_by_row: Any
) -> None:
    target, draft = tiny_pair
    prompts = [prompt(length, 8) for length in (20, 31, 44)]
    plain = load(target, registry=row_by_row())
    known = known_texts(plain, prompts, 40, greedy(3))
    replayed = ReplayedDrafts(known, corruption=0.3, vocab_size=VOCAB)
    engine = load(target, draft=draft, drafts=replayed, registry=row_by_row())
    driver = Driver(engine, pool_blocks=64)
    first = [driver.submit(each, max_tokens=40) for each in prompts[:2]]
    for _ in range(4):
        driver.step()
    joining = driver.submit(prompts[2], max_tokens=40)
    for _ in range(3):
        driver.step()
    before = {slot: everything_of(engine, slot) for slot in (0, 2)}
    driver.engine.retire(first[1].slot)
    after = {slot: everything_of(engine, slot) for slot in (0, 2)}
    for slot, parts in before.items():
        assert all(torch.equal(a, b) for a, b in zip(parts, after[slot], strict=True))
    engine.admit(first[1].slot, first[1])
    driver.cancel(first[1])
    driver.run()
    assert first[0].generated == known[prompts[0]]
    assert joining.generated == known[prompts[2]]


def everything_of(engine: QwenEngine, slot: int) -> list[torch.Tensor]:
    """Copies of a slot's recurrent state and rings."""
    caches = [mixer.cache for mixer in engine._model._recurrent]
    rings = engine._drafting._draft._rings.layers
    parts = [part[slot] for cache in caches for part in (cache.conv, cache.delta)]
    parts += [part[slot] for ring in rings for part in (ring.k, ring.v)]
    return [part.clone() for part in parts]


def test_a_draft_that_fails_costs_no_request_and_is_logged_once(
    tiny_pair: Pair, load: Any, row_by_row: Any, caplog: Any
) -> None:
    target, draft = tiny_pair
    text = prompt(12)
    known = known_texts(load(target, registry=row_by_row()), [text], 20, greedy(1))[text]
    engine = load(target, draft=draft, registry=row_by_row())
    spy = Spy(engine)
    driver = Driver(engine, pool_blocks=64)
    spy.fails = True
    request = driver.submit(text, max_tokens=20)
    driver.run()
    assert request.generated == known
    assert request.proposed == 0
    assert len([r for r in caplog.records if "draft model could not" in r.getMessage()]) == 1
    spy.fails = False
    again = driver.submit(text, max_tokens=20)
    driver.run()
    assert again.generated == known
    assert again.proposed > 0


def test_a_slot_whose_features_are_lost_drafts_no_more_until_it_is_admitted_again(
    tiny_pair: Pair, load: Any, row_by_row: Any, caplog: Any
) -> None:
    target, draft = tiny_pair
    text = prompt(12)
    known = known_texts(load(target, registry=row_by_row()), [text], 20, greedy(1))[text]
    engine = load(target, draft=draft, registry=row_by_row())
    driver = Driver(engine, pool_blocks=64)
    request = driver.submit(text, max_tokens=20)
    driver.step()
    driver.step()
    draft = engine._drafting._draft
    inject, has_room = draft._inject, draft.backlog.has_room

    def broken(batch: Any) -> None:
        raise RuntimeError("no room")

    draft._inject, draft.backlog.has_room = broken, lambda rows: not draft.backlog.runs(range(6))
    driver.step()
    proposed = request.proposed
    draft._inject, draft.backlog.has_room = inject, has_room
    driver.run()
    assert request.generated == known
    assert request.proposed == proposed > 0
    assert [r for r in caplog.records if "draft model could not" in r.getMessage()]
    again = driver.submit(text, max_tokens=20)
    driver.run()
    assert again.generated == known
    assert again.proposed > 0


def test_no_drafts_behind_the_end_of_the_drafts_context(
    tiny_pair: Pair, tmp_path: Path, load: Any, row_by_row: Any, write_tiny_draft: Any
) -> None:
    target, _ = tiny_pair
    short = write_tiny_draft(tmp_path / "short.gguf", context=40)
    text = prompt(30)
    known = known_texts(load(target, registry=row_by_row()), [text], 40, greedy(1))
    replayed = ReplayedDrafts(known, corruption=0.0, vocab_size=VOCAB)
    engine = load(target, draft=short, drafts=replayed, registry=row_by_row())
    spy = Spy(engine)
    driver = Driver(engine, pool_blocks=64)
    request = driver.submit(text, max_tokens=40)
    driver.run()
    assert request.generated == known[text]
    # 30 + 8 tokens after the first block, and one draft fits before position 40.
    assert [(a.position, a.drafts) for a, _ in spy.blocks] == [(30, 7), (38, 1)]


def test_prompts_longer_than_a_step_and_than_the_window_are_taken_in(
    tiny_pair: Pair, tmp_path: Path, load: Any, row_by_row: Any
) -> None:
    _, draft = tiny_pair
    target = write_hybrid(tmp_path / "long.gguf", SyntheticHybrid(seed=4, context=4096))
    engine = load(target, draft=draft, blocks=200)
    capabilities = engine.capabilities
    assert capabilities.idle.rows_total == capabilities.lone.rows_total == 1024 > INJECT_ROWS
    driver = Driver(engine, pool_blocks=200)
    request = driver.submit(prompt(2500), max_tokens=10)
    driver.run()
    assert len(request.generated) == 10
    assert request.proposed > 0


def test_steps_with_a_prompt_draft_nothing_if_widths_say_so(tiny_pair: Pair, load: Any) -> None:
    target, draft = tiny_pair
    engine = load(target, draft=draft, widths=AdaptiveWidths(StepCosts.even(6, 7)))
    spy = Spy(engine)
    driver = Driver(engine, pool_blocks=64)
    first = driver.submit(prompt(9), max_tokens=20)
    driver.step()
    driver.submit(prompt(10), max_tokens=20)
    driver.step()
    assert len(first.generated) == 2
    assert not spy.rows
    driver.step()
    assert [len(rows) for rows in spy.rows] == [2 * 8]


def test_fixed_widths_bound_every_block(tiny_pair: Pair, load: Any) -> None:
    target, draft = tiny_pair
    engine = load(target, draft=draft, widths=FixedWidths(2))
    spy = Spy(engine)
    driver = Driver(engine, pool_blocks=64)
    driver.submit(prompt(9), max_tokens=12)
    driver.run()
    assert {anchor.drafts for anchor, _ in spy.blocks} <= {1, 2}
    assert spy.blocks


def test_a_draft_of_another_model_is_warned_about_once(
    tiny_pair: Pair, load: Any, caplog: Any
) -> None:
    """Random weights: of 320 tokens the draft hits the next one by chance alone."""
    target, draft = tiny_pair
    engine = load(target, draft=draft, blocks=BLOCKS)
    driver = Driver(engine, pool_blocks=BLOCKS)
    params = SamplingParams(temperature=1.0, seed=1)
    requests = [driver.submit(prompt(9, n), max_tokens=120, params=params) for n in range(6)]
    driver.run()
    assert sum(request.proposed for request in requests) > 2 * 200 * 7
    lines = [r for r in caplog.records if "were accepted" in r.getMessage()]
    assert len(lines) == 1
    assert lines[0].levelname == "WARNING"


def test_a_slot_that_stays_in_the_rings_is_a_leak(tiny_pair: Pair, load: Any) -> None:
    target, draft = tiny_pair
    engine = load(target, draft=draft)
    driver = Driver(engine, pool_blocks=64)
    request = driver.submit(prompt(9), max_tokens=12)
    driver.step()
    assert engine.held_slots == sorted(engine._drafting.held_slots) == [request.slot.id]
    engine._drafting.retire = lambda slot_id: None
    driver.run()
    with pytest.raises(AssertionError, match="keeps state of slots"):
        leak_check(driver.scheduler, engine=engine)


def test_rows_that_wait_for_a_slot_that_has_left_are_a_leak(tiny_pair: Pair, load: Any) -> None:
    target, draft = tiny_pair
    engine = load(target, draft=draft)
    driver, backlog = Driver(engine, pool_blocks=64), engine._drafting._draft.backlog
    driver.submit(prompt(9), max_tokens=2)
    backlog.forget = lambda slot_id: None
    backlog.clear = lambda: None
    driver.run()
    with pytest.raises(AssertionError, match="keeps state of slots"):
        leak_check(driver.scheduler, engine=engine)
