"""Drafting at depth: as good at the end of a long context as at its beginning, ring or no ring."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from luce_qwen_dflash2.draft.backlog import Kept
from luce_qwen_dflash2.engine import QwenEngine
from luce_qwen_dflash2.replayed import ReplayedDrafts, corruption_for
from luce_qwen_dflash2.synthetic import SyntheticHybrid, write_hybrid
from luce_qwen_dflash2.testing import inject

from luce_core.request import FinishReason, Request
from luce_core.testing.driver import Driver
from luce_core.testing.leak_check import leak_check

VOCAB, WINDOW, BLOCKS = 320, 64, 320


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(f"{length} {salt}").choices(range(250), k=length))


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    model = SyntheticHybrid(seed=4, context=2048)
    return write_hybrid(tmp_path_factory.mktemp("deep") / "deep.gguf", model)


def run(engine: QwenEngine, text: tuple[int, ...], new: int) -> tuple[Request, int]:
    """The finished request, and the steps that it took behind its prompt."""
    driver = Driver(engine, pool_blocks=BLOCKS)
    request = driver.submit(text, max_tokens=new)
    while not request.generated:
        driver.step()
    steps = 0
    while request.finish is None:
        driver.step()
        steps += 1
    return request, steps


def test_as_much_is_accepted_at_1000_tokens_as_at_50(
    target: Path, tiny_pair: tuple[Path, Path], load: Any, row_by_row: Any
) -> None:
    """A drafter that is right at a fixed rate, over the same places of both texts."""
    plain = load(target, registry=row_by_row(), blocks=BLOCKS)
    per_step = []
    for length in (50, 1000):
        text, new = prompt(length), 200
        known = run(plain, text, new)[0].generated
        source = ReplayedDrafts({text: known}, corruption=0.2, vocab_size=VOCAB)
        wrong = random.Random("the same places")
        source._drafts[text] = [
            token if wrong.random() > 0.2 else (token + 1) % VOCAB for token in known
        ]
        engine = load(
            target, draft=tiny_pair[1], drafts=source, registry=row_by_row(), blocks=BLOCKS
        )
        request, steps = run(engine, text, new)
        assert request.generated == known
        assert request.proposed >= 6 * steps
        per_step.append(request.accepted / steps)
    assert per_step[0] > 2
    assert per_step[1] >= 0.95 * per_step[0]


def test_replayed_drafts_yield_the_tokens_that_a_rate_stands_for(
    target: Path, tiny_pair: tuple[Path, Path], load: Any
) -> None:
    text = prompt(20)
    known = run(load(target, blocks=BLOCKS), text, 1000)[0].generated
    corruption = corruption_for(5.0, 7)
    assert sum((1 - corruption) ** draft for draft in range(8)) == pytest.approx(5.0)
    source = ReplayedDrafts({text: known}, corruption=corruption, vocab_size=VOCAB)
    engine = load(target, draft=tiny_pair[1], drafts=source, blocks=BLOCKS)
    request, steps = run(engine, text, 1000)
    assert len(request.generated) / steps == pytest.approx(5.0, rel=0.1)
    with pytest.raises(ValueError, match=r"9.0 tokens a round: with 7 drafts, 1 to 8"):
        corruption_for(9.0, 7)


def test_rings_that_wrap_at_different_times_do_not_touch_each_other(
    target: Path, tiny_pair: tuple[Path, Path], load: Any, row_by_row: Any
) -> None:
    """Two slots pass the window, one is cancelled and its slot reused: every block is what a draft
    proposes that has read that text alone."""
    plain = load(target, registry=row_by_row(), blocks=BLOCKS)
    prompts = [prompt(40, 1), prompt(110, 2), prompt(55, 3)]
    known = {text: run(plain, text, 120)[0].generated for text in prompts}
    source = ReplayedDrafts(known, corruption=0.3, vocab_size=VOCAB)
    engine = load(target, draft=tiny_pair[1], drafts=source, registry=row_by_row(), blocks=BLOCKS)
    draft, blocks, features = engine._drafting._draft, [], {}
    propose, forward = draft.propose, engine._run

    def kept_propose(anchors):
        answers = propose(anchors)
        for anchor, block in zip(anchors, answers, strict=True):
            blocks.append((engine._requests[anchor.slot_id].prompt, anchor, block))
        return answers

    def kept_forward(batch):
        results, backlog = forward(batch), draft.backlog
        rows = backlog.rows[backlog.places.tensor[: batch.rows]]
        starts, slots = batch.cu_seqlens.tolist(), batch.slot_ids.tolist()
        for segment, slot in enumerate(slots):
            seen = features.setdefault(engine._requests[slot].prompt, {})
            for row in range(starts[segment], starts[segment + 1]):
                seen[int(batch.positions[row])] = rows[row]  # the last one stays
        return results

    draft.propose, engine._run = kept_propose, kept_forward
    driver = Driver(engine, pool_blocks=BLOCKS)
    first, second = (driver.submit(text, max_tokens=120) for text in prompts[:2])
    while len(first.generated) < 60:
        driver.step()
    driver.cancel(second)
    third = driver.submit(prompts[2], max_tokens=120)
    driver.run()
    leak_check(driver.scheduler, engine=engine)
    assert second.finish is FinishReason.CANCELLED
    for request in (first, third):
        assert request.generated == known[request.prompt]
    assert {anchor.slot_id for text, anchor, _ in blocks if text == prompts[2]} == {1}
    oracle, passed = engine._loaded_draft.allocate(max_step_rows=256), 0
    for text, anchor, block in blocks:
        seen = torch.stack([features[text][at] for at in range(anchor.position)])
        oracle.reset(0)
        with torch.inference_mode():
            inject(oracle, seen, [Kept(0, 0, 0, anchor.position)])
            assert oracle.propose([anchor._replace(slot_id=0)]) == [block]
        passed += anchor.position > WINDOW
    assert passed > 30
