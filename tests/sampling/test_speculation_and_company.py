"""Text does not depend on drafts, slots, neighbours, row order, preemption or global seeds."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from luce_core.sampling.noise import GumbelNoise
from luce_core.sampling.sampler import Sampler

VOCAB = 24
LENGTH = 30
STOPS = frozenset({5, 6})

FILTERS = [
    {},
    {"top_k": 6},
    {"top_p": 0.7},
    {"min_p": 0.08},
    {"repetition_penalty": 1.4},
    {"presence_penalty": 0.8, "frequency_penalty": 0.4},
    {"logit_bias": ((3, -100.0), (9, 2.0))},
    {"logit_bias": ((3, 100.0), (9, 101.0), (10, 100.0))},
    {"min_tokens": 20},
    {
        "top_k": 12,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "logit_bias": ((1, 1.0), (2, -100.0)),
        "min_tokens": 10,
        "logprobs": 3,
    },
]


def _model(text: list[int]) -> torch.Tensor:
    """Logits after a text: a fixed function of its last two tokens and its length."""
    state = (text[-1] * 31 + text[-2] * 7 + len(text)) % 997
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(state)) * 2


def _generate(sampler, slot_id, request, draft_source=None, *, max_draft=0):
    """Text of at least LENGTH tokens from one slot, with drafts from `draft_source`."""
    sampler.admit(slot_id, request)
    text = list(request.prompt) + list(request.generated)
    begin, entries = len(request.prompt), []
    while len(text) - begin < LENGTH:
        drafts = []
        if draft_source is not None:
            offered = [draft_source(text) for _ in range(draft_source.randint(0, max_draft))]
            drafts = sampler.clip_drafts([slot_id], [offered])[0]
        rows = torch.stack([_model(text + drafts[:j]) for j in range(len(drafts) + 1)])
        (result,) = sampler.accept(rows, [0, len(rows)], [slot_id], [drafts])
        assert result.error is None
        text += result.tokens
        entries += result.logprobs or ()
    return text[begin : begin + LENGTH], entries[:LENGTH]


class _Oracle(random.Random):
    """Offers the token that comes next in a known text, sometimes another one."""

    def __init__(self, seed: int, truth: list[int], prompt_len: int, hit_rate: float) -> None:
        super().__init__(seed)
        self._truth, self._prompt_len, self._hit_rate = truth, prompt_len, hit_rate
        self._ahead = 0
        self._last = -1

    def __call__(self, text: list[int]) -> int:
        place = len(text) - self._prompt_len
        self._ahead = self._ahead + 1 if place == self._last else 0
        self._last = place
        index = place + self._ahead
        if index < len(self._truth) and self.random() < self._hit_rate:
            return self._truth[index]
        return self.randrange(-1, VOCAB + 1)


@settings(max_examples=60, deadline=None)
@given(
    temperature=st.sampled_from([0.0, 0.7, 2.0]),
    filters=st.sampled_from(FILTERS),
    seed=st.integers(0, 2**64 - 1),
    max_draft=st.sampled_from([1, 3, 7, 15]),
    hit_rate=st.sampled_from([0.0, 0.6, 0.95]),
)
def test_text_with_drafts_is_the_text_without(
    request_of, temperature, filters, seed, max_draft, hit_rate
) -> None:
    def build():
        return request_of(
            prompt=(4, 8, 15), temperature=temperature, seed=seed, stop_ids=STOPS, **filters
        )

    plain, plain_logprobs = _generate(Sampler(1, VOCAB), 0, build())
    oracle = _Oracle(seed, plain, 3, hit_rate)
    drafted, logprobs = _generate(Sampler(3, VOCAB), 2, build(), oracle, max_draft=max_draft)
    assert drafted == plain
    assert [entry.token for entry in logprobs] == [entry.token for entry in plain_logprobs]
    assert logprobs == plain_logprobs


def test_right_drafts_are_accepted_whole(request_of) -> None:
    request = request_of(prompt=(4, 8, 15), temperature=1.0, seed=3)
    plain, _ = _generate(Sampler(1, VOCAB), 0, request)
    sampler = Sampler(1, VOCAB)
    sampler.admit(0, request)
    text, drafts = [4, 8, 15], plain[:7]
    rows = torch.stack([_model(text + drafts[:j]) for j in range(8)])
    assert list(sampler.accept(rows, [0, 8], [0], [drafts])[0].tokens) == plain[:8]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
def test_a_draft_with_the_models_scores_draws_what_is_accepted(temperature, request_of) -> None:
    rows = torch.randn(2, 5, VOCAB, generator=torch.Generator().manual_seed(8))
    sampler = Sampler(4, VOCAB)
    for slot_id in (3, 1):
        sampler.admit(slot_id, request_of(temperature=temperature, seed=slot_id, generated=(2, 2)))
    block = sampler.draw(rows, [3, 1])
    single = [sampler.draw(rows[:, k : k + 1], [3, 1], first=k) for k in range(5)]
    assert torch.equal(torch.cat(single, 1), block)
    drafts = [tokens[:4] for tokens in block.tolist()]
    results = sampler.accept(rows.flatten(0, 1), [0, 5, 10], [3, 1], drafts)
    assert [list(r.tokens) for r in results] == block.tolist()


def test_a_draft_that_draws_on_its_own_finds_the_same_tokens(request_of) -> None:
    scores = torch.randn(1, 5, VOCAB, generator=torch.Generator().manual_seed(9))
    sampler = Sampler(4, VOCAB)
    sampler.admit(2, request_of(temperature=0.7, seed=3, choice_index=1, generated=(2, 2)))
    noise = sampler.draft_noise(2, 5)
    gumbel = GumbelNoise(VOCAB).rows(torch.tensor(noise.keys))
    own = ((scores[0] - scores[0].amax(1, keepdim=True)) / noise.temperature + gumbel).argmax(1)
    assert own.tolist() == sampler.draw(scores, [2])[0].tolist()


@pytest.mark.parametrize("filters", FILTERS)
def test_preemption_continues_the_text(filters, request_of) -> None:
    def build(generated=()):
        return request_of(
            prompt=(4, 8), generated=generated, temperature=0.9, seed=5, stop_ids=STOPS, **filters
        )

    straight, _ = _generate(Sampler(2, VOCAB), 0, build())
    sampler = Sampler(2, VOCAB)
    sampler.admit(1, build())
    sampler.retire(1)
    resumed, _ = _generate(sampler, 0, build(tuple(straight[:11])))
    assert resumed == straight


MIX = [
    {"temperature": temperature, **filters}
    for filters in FILTERS
    for temperature in (0.0, 0.7, 2.0)
]


@pytest.mark.parametrize("vocab", [VOCAB, 33_001])
def test_a_row_is_chosen_alone_as_in_company(vocab, request_of) -> None:
    """Every kind of request in one step, in any slot and order: what each gets when alone."""
    generator = torch.Generator().manual_seed(21)
    rows = torch.randn(len(MIX), vocab, generator=generator) * 2
    rows[::2] = rows[::2].bfloat16().float()  # many ties
    count = len(MIX)

    def results(order, slot_of):
        sampler = Sampler(count, vocab)
        for i in order:
            request = request_of(prompt=(1, 2, 3), generated=(7, 7), seed=i, **MIX[i])
            sampler.admit(slot_of[i], request)
        slots = [slot_of[i] for i in order]
        found = sampler.accept(rows[order], list(range(len(order) + 1)), slots, [[] for _ in order])
        return dict(zip(order, found, strict=True))

    alone = {}
    for i in range(count):
        alone |= results([i], {i: 0})
    shuffled = list(range(count))
    random.Random(1).shuffle(shuffled)
    assert results(list(range(count)), list(range(count))) == alone
    assert results(shuffled, shuffled[::-1]) == alone
    assert results(shuffled[:8], shuffled) == {i: alone[i] for i in shuffled[:8]}


def test_thread_count_changes_no_token(request_of) -> None:
    rows = torch.randn(4, 50_000, generator=torch.Generator().manual_seed(22))
    threads, texts = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            sampler = Sampler(4, 50_000)
            for slot_id in range(4):
                filters = {"top_p": 0.9} if slot_id % 2 else {}
                sampler.admit(slot_id, request_of(seed=slot_id, **filters))
            texts.append([sampler.accept(rows, [0, 1, 2, 3, 4], [0, 1, 2, 3], [[]] * 4)])
    finally:
        torch.set_num_threads(threads)
    assert texts[0] == texts[1]


def test_global_generators_have_no_effect(request_of) -> None:
    texts = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        texts.append(_generate(Sampler(1, VOCAB), 0, request_of(prompt=(4, 8), seed=7))[0])
    assert texts[0] == texts[1]


def test_seeds_and_choices_give_different_texts(request_of) -> None:
    texts = {
        tuple(
            _generate(
                Sampler(1, VOCAB), 0, request_of(prompt=(4, 8), seed=seed, choice_index=choice)
            )[0]
        )
        for seed in (0, 1, 7, 2**63, 2**64 - 1)
        for choice in (0, 1, 2)
    }
    assert len(texts) == 15
