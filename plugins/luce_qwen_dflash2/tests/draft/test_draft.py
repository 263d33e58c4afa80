"""Injection and proposals of the draft as engines call them, without an outside oracle."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from luce_qwen_dflash2.draft.backlog import BACKLOG_ROWS, Kept
from luce_qwen_dflash2.draft.config import DraftConfig
from luce_qwen_dflash2.draft.draft import Anchor
from luce_qwen_dflash2.ops.draft_ops import DRAFT_OPS
from torch import Tensor

from luce_core.ops.core_ops import core_registry
from luce_core.ops.record import ReferenceRecorder
from luce_core.request import Request, RequestTimes, SamplingParams
from luce_core.sampling.noise import GumbelNoise
from luce_core.sampling.sampler import Sampler

WIDTH, VOCAB = 64, 320


@pytest.fixture(params=["first", "second"])
def config(request: pytest.FixtureRequest) -> DraftConfig:
    found: DraftConfig = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("pieces", [(1,) * 90, (64, 26), (3, 60, 1, 26), (89, 1)])
def test_injection_in_pieces_is_injection_at_once(
    config: DraftConfig, load: Any, features_of: Any, pieces: tuple[int, ...]
) -> None:
    whole, piecewise = load(config), load(config)
    features = features_of(90)
    whole.inject(features)
    start = 0
    for count in pieces:
        piecewise.inject(features[start : start + count], start=start)
        start += count
    anchor = Anchor(0, 4, 90, 7)
    assert piecewise.draft.propose([anchor]) == whole.draft.propose([anchor])
    torch.testing.assert_close(piecewise.seen_hidden[0], whole.seen_hidden[0], rtol=0, atol=1e-5)


def test_one_step_of_many_rows_of_several_slots_spreads_over_injections(
    config: DraftConfig, load: Any, features_of: Any
) -> None:
    """More rows than are staged at once, and more than a window, in one call."""
    together, alone = load(config), load(config)
    features = features_of(1300)
    kept = [Kept(2, 0, 0, 450), Kept(0, 450, 0, 700), Kept(1, 1150, 0, 5)]
    together.step(features, kept)
    anchors = [Anchor(2, 9, 450, 5), Anchor(0, 3, 700, 7), Anchor(1, 8, 5, 1)]
    blocks = together.draft.propose(anchors)
    for (slot, first, _, rows), anchor, block in zip(kept, anchors, blocks, strict=True):
        alone.inject(features[first : first + rows], slot=slot)
        assert alone.draft.propose([anchor]) == [block]


def test_slots_that_wrap_at_different_times_do_not_touch_each_other(
    config: DraftConfig, load: Any, features_of: Any
) -> None:
    """Two slots grow unevenly past their windows; one is retired and its slot taken again."""
    ours, solo = load(config, slots=2), load(config, slots=1)
    chance = random.Random(1)
    texts = {0: features_of(260, 10), 1: features_of(260, 11)}

    def block_alone(features: Tensor, anchor: Anchor) -> list[int]:
        solo.draft.reset(0)
        solo.inject(features)
        return list(solo.draft.propose([anchor._replace(slot_id=0)])[0])

    lengths = {0: 0, 1: 0}
    for cycle in range(24):
        grown = {0: chance.randint(1, 9), 1: chance.randint(1, 17)}
        rows = torch.cat([texts[s][lengths[s] : lengths[s] + grown[s]] for s in (0, 1)])
        kept = [Kept(0, 0, lengths[0], grown[0]), Kept(1, grown[0], lengths[1], grown[1])]
        ours.step(rows, kept)
        lengths = {slot: lengths[slot] + grown[slot] for slot in (0, 1)}
        anchors = [Anchor(slot, cycle, lengths[slot], 7) for slot in (0, 1)]
        for anchor, block in zip(anchors, ours.draft.propose(anchors), strict=True):
            assert block == block_alone(texts[anchor.slot_id][: anchor.position], anchor)
        if cycle == 11:  # cancelled: the next request finds the old one's ring
            ours.draft.reset(1)
            lengths[1], texts[1] = 0, features_of(260, 12)
    assert min(lengths.values()) > 64


def test_what_the_target_rejects_leaves_no_trace(
    config: DraftConfig, load: Any, features_of: Any
) -> None:
    verified, plain = load(config), load(config)
    features, rejected = features_of(120), features_of(8, 5) * 100
    for ours in (verified, plain):
        ours.inject(features[:60])
    for start in range(60, 120, 2):
        step = torch.cat((features[start : start + 2], rejected))
        verified.step(step, [Kept(0, 0, start, 2)])
    plain.inject(features[60:], start=60)
    anchor = Anchor(0, 4, 120, 7)
    assert verified.draft.propose([anchor]) == plain.draft.propose([anchor])


def test_row_0_of_every_block_is_the_anchor_and_the_others_are_the_mask(
    second: DraftConfig, load: Any, features_of: Any
) -> None:
    """50 cycles: the first after the prompt, after accepting all, and after rejecting at once."""
    ours = load(second, slots=2)
    chance = random.Random(2)
    features = features_of(600)
    lengths = [13, 30]
    for slot, length in enumerate(lengths):
        ours.inject(features[:length], slot=slot)
    for cycle in range(50):
        anchors = [
            Anchor(slot, chance.randrange(VOCAB), lengths[slot], chance.randint(1, 7))
            for slot in (0, 1)
        ]
        ours.draft.propose(anchors)
        assert ours.seen_tokens[-1] == [
            token for a in anchors for token in (a.token, *(second.mask_token,) * a.drafts)
        ]
        for anchor in anchors:
            kept = 1 + (0 if cycle % 2 else anchor.drafts)
            rows = features[anchor.position : anchor.position + 1 + anchor.drafts]
            ours.step(rows, [Kept(anchor.slot_id, 0, anchor.position, kept)])
            lengths[anchor.slot_id] += kept


def test_a_block_is_the_same_alone_and_in_company(
    config: DraftConfig, load: Any, features_of: Any
) -> None:
    ours = load(config, slots=5)
    anchors = []
    for slot, length in enumerate((5, 64, 130, 1, 77)):
        ours.inject(features_of(length, slot), slot=slot)
        anchors.append(Anchor(slot, slot + 20, length, 1 + slot))
    together = ours.draft.propose(anchors)
    assert [ours.draft.propose([anchor])[0] for anchor in anchors] == together
    assert [len(block) for block in together] == [1, 2, 3, 4, 5]


def sampler_with(temperature: float, slot_id: int) -> Sampler:
    sampler = Sampler(3, VOCAB)
    params = SamplingParams(temperature=temperature, seed=31)
    request = Request(1, (1,), params, 99, frozenset(), RequestTimes(0.0), generated=[7, 8])
    sampler.admit(slot_id, request)
    return sampler


@pytest.mark.parametrize("temperature", [0.3, 0.8, 3.0])
def test_a_first_draft_draws_what_the_sampler_draws_from_its_logits(
    first: DraftConfig, load: Any, features_of: Any, temperature: float
) -> None:
    ours = load(first)
    ours.inject(features_of(70), slot=1)
    sampler = sampler_with(temperature, 1)
    block = ours.draft.propose([Anchor(1, 4, 70, 15, sampler.draft_noise(1, 15))])[0]
    logits = ours.seen_hidden[-1] @ ours.head.t()
    assert block == sampler.draw(logits[None], [1])[0].tolist()
    assert block != logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0.8, 3.0, 9.0])
def test_the_selector_walks_with_the_samplers_noise(
    second: DraftConfig, load: Any, features_of: Any, weights_of: Any, temperature: float
) -> None:
    """The walk written down once more, over the whole vocabulary; the other slot is greedy."""
    ours = load(second)
    ours.inject(features_of(70), slot=1)
    ours.inject(features_of(70), slot=2)
    noise = sampler_with(temperature, 1).draft_noise(1, 7)
    greedy, block = ours.draft.propose([Anchor(2, 4, 70, 7), Anchor(1, 4, 70, 7, noise)])
    weights = weights_of(second)
    hidden = ours.seen_hidden[-1][7:]
    projected = hidden @ weights["selector_hidden.weight"].t()
    token, expected = 4, []
    for row, g, key in zip(hidden @ ours.head.t(), projected, noise.keys, strict=True):
        before = weights["selector_predecessor.weight"][token]
        scores = row + weights["selector_successor.weight"] @ (before * g)
        outside = torch.ones(VOCAB, dtype=torch.bool)
        outside[row.sort(descending=True, stable=True).indices[:16]] = False
        scores = scores.masked_fill(outside, -torch.inf)
        gumbel = GumbelNoise(VOCAB).rows(torch.tensor([key]))[0]
        token = int(((scores - scores.max()) / temperature + gumbel).argmax())
        expected.append(token)
    assert block == expected
    assert block != greedy
    assert ours.draft.propose([Anchor(1, 4, 70, 7)]) == [greedy]


def test_recorded_passes_do_what_the_op_by_op_ones_do(
    config: DraftConfig, load: Any, features_of: Any
) -> None:
    registry = core_registry()
    for spec in DRAFT_OPS:
        registry.register_op(spec)
    registry.register_recorder(ReferenceRecorder().compile, provider="again", device="cpu")
    recorded, eager = load(config, registry=registry), load(config)
    assert recorded.modes == ("replayed by again",) * 2
    for ours in (recorded, eager):
        for slot, length in enumerate((80, 3, 65)):
            ours.inject(features_of(length, slot), slot=slot)
    anchors = [Anchor(slot, 6, length, 7) for slot, length in enumerate((80, 3, 65))]
    assert recorded.draft.propose(anchors) == eager.draft.propose(anchors)


def test_rings_of_half_precision_draft_nearly_the_same(
    second: DraftConfig, load: Any, features_of: Any
) -> None:
    half, whole = load(second, ring_dtype=torch.float16), load(second)
    for ours in (half, whole):
        ours.inject(features_of(100))
        ours.draft.propose([Anchor(0, 6, 100, 7)])
    difference = (half.seen_hidden[0] - whole.seen_hidden[0]).abs().max()
    assert 0 < difference < 2e-2
    half_memory, memory = (ours.loaded.memory(max_step_rows=8) for ours in (half, whole))
    assert 2 * half_memory.per_slot == memory.per_slot


def test_a_smaller_block_size_bounds_the_drafts(load: Any, second: DraftConfig) -> None:
    ours = load(second, block_size=4)
    assert ours.loaded.max_draft == ours.draft.room(0) == 3


def test_no_drafts_behind_the_end_of_either_context(
    load: Any, second: DraftConfig, features_of: Any
) -> None:
    ours = load(replace(second, context=50), max_context=100)
    assert ours.loaded.max_context == 50
    for length, room in ((45, 4), (48, 1), (49, 0), (50, 0), (60, 0)):
        ours.draft.reset(0)
        ours.inject(features_of(length))
        assert ours.draft.room(0) == room
    assert load(second, max_context=40).loaded.max_context == 40


def test_memory_counts_the_rings(config: DraftConfig, load: Any) -> None:
    """A ring is the window, or the whole context where a layer sees everything."""
    ours = load(config, max_context=256)
    entries = sum(window or 256 for window in config.windows)
    rings = 2 * 4 * config.kv_heads * config.head_dim * entries
    memory = ours.loaded.memory(max_step_rows=1400)
    assert memory.per_slot == rings
    assert memory.scratch > (1400 + 512) * 3 * WIDTH * 4


def test_rows_that_come_one_by_one_wait_and_lose_nothing(
    config: DraftConfig, load: Any, features_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass for every BACKLOG_ROWS tokens of slots that do not draft, whoever else fills up."""
    # As beside a large model.
    monkeypatch.setattr("luce_qwen_dflash2.draft.backlog._SMALL_BYTES", 0)
    slow, whole = load(config, max_step_rows=40), load(config)
    texts = {0: features_of(150, 1), 1: features_of(150, 2)}
    passes, inject = 0, slow.draft._inject

    def counted(batch: Any) -> Any:
        nonlocal passes
        passes += 1
        return inject(batch)

    slow.draft._inject = counted
    for at in range(150):
        step = torch.cat([texts[0][at : at + 1], texts[1][at : at + 1]])
        rows = [Kept(0, 0, at, 1)] if at < 7 else [Kept(0, 0, at, 1), Kept(1, 1, at - 7, 1)]
        slow.step(step, rows)
    assert 2 <= passes <= 150 // BACKLOG_ROWS + 1
    slow.inject(texts[0][:40], slot=2)  # at once
    whole.inject(texts[0])
    whole.inject(texts[1][7:], slot=1)
    whole.inject(texts[0][:40], slot=2)
    for slot, length in ((0, 150), (1, 143), (2, 40)):
        anchor = Anchor(slot, 4, length, 7)
        assert slow.draft.propose([anchor]) == whole.draft.propose([anchor])


def test_gaps_and_repeats_in_what_is_injected_are_our_own_fault(
    second: DraftConfig, load: Any, features_of: Any
) -> None:
    ours = load(second)
    ours.inject(features_of(10))
    with pytest.raises(AssertionError):
        ours.inject(features_of(5), start=11)
    with pytest.raises(AssertionError):
        ours.draft.propose([Anchor(0, 1, 9, 7)])
