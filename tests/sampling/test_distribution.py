"""Draws follow the filtered softmax, computed here by transformers' processors."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from luce_core.sampling.sampler import Sampler

VOCAB = 12
RUNS = 6_000
BATCH = 500
START = 4
PROMPT = (1, 2, 2, 7)

CASES = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 2.0},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "repetition": {"repetition_penalty": 1.6},
    "bias": {"logit_bias": ((0, -100.0), (4, 1.5), (5, -0.7))},
    "all": {
        "temperature": 1.3,
        "top_k": 8,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
        "logit_bias": ((3, 0.5), (6, -100.0)),
    },
}


def _expected(logits: torch.Tensor, seen: tuple[int, ...], params: dict) -> torch.Tensor:
    row = logits.double().clone()[None]
    for token, bias in params.get("logit_bias", ()):
        row[0, token] += bias if bias > -100 else float("-inf")
    if "repetition_penalty" in params:
        processor = RepetitionPenaltyLogitsProcessor(params["repetition_penalty"])
        row = processor(torch.tensor([seen]), row)
    row = row / params.get("temperature", 1.0)
    if "min_p" in params:
        row = MinPLogitsWarper(params["min_p"])(None, row)
    if "top_k" in params:
        row = TopKLogitsWarper(params["top_k"])(None, row)
    if "top_p" in params:
        row = TopPLogitsWarper(params["top_p"])(None, row)
    return row[0].softmax(0)


@pytest.mark.parametrize("name", CASES)
def test_positions_and_pairs_follow_the_filtered_softmax(name, request_of, chi_square_p) -> None:
    """RUNS requests of three tokens; the model is a Markov chain over its own last token."""
    params = CASES[name]
    model = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(11))
    sampler = Sampler(BATCH, VOCAB)
    bounds, slots, drafts = list(range(BATCH + 1)), list(range(BATCH)), [[]] * BATCH
    counts = torch.zeros(VOCAB**3, dtype=torch.int64)
    for first_seed in range(0, RUNS, BATCH):
        for slot_id in slots:
            request = request_of(seed=first_seed + slot_id, prompt=PROMPT, **params)
            sampler.admit(slot_id, request)
        last, codes = torch.full((BATCH,), START), torch.zeros(BATCH, dtype=torch.int64)
        for _ in range(3):
            results = sampler.accept(model[last], bounds, slots, drafts)
            last = torch.tensor([r.tokens[0] for r in results])
            codes = codes * VOCAB + last
        counts += codes.bincount(minlength=VOCAB**3)
    counts = counts.view(VOCAB, VOCAB, VOCAB)

    joint = torch.zeros(VOCAB, VOCAB, VOCAB, dtype=torch.float64)
    first = _expected(model[START], PROMPT, params)
    for a in range(VOCAB):
        second = _expected(model[a], (*PROMPT, a), params)
        for b in range(VOCAB):
            joint[a, b] = first[a] * second[b] * _expected(model[b], (*PROMPT, a, b), params)
    for axes in ((1, 2), (0, 2), (0, 1), (2,), (0,), (1,)):
        assert chi_square_p(counts.sum(axes), joint.sum(axes)) > 0.001, f"summed over {axes}"


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 2500, "top_p": 0.97}])
def test_a_large_vocabulary_is_sampled_by_its_softmax(filters, request_of, chi_square_p) -> None:
    """One request of many tokens: positions as the source of randomness."""
    vocab, rounds, width = 3001, 100, 64
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(12)) * 2
    sampler = Sampler(width, vocab)
    for slot_id in range(width):
        sampler.admit(slot_id, request_of(seed=99, choice_index=slot_id, **filters))
    rows = logits.expand(width, -1)
    counts = torch.zeros(vocab, dtype=torch.int64)
    for _ in range(rounds):
        results = sampler.accept(rows, list(range(width + 1)), list(range(width)), [[]] * width)
        counts += torch.tensor([r.tokens[0] for r in results]).bincount(minlength=vocab)
    assert chi_square_p(counts, _expected(logits, (), filters)) > 0.001


@pytest.mark.parametrize("filters", [{"top_k": 1}, {"top_p": 0.0001}, {"min_p": 1.0}])
def test_a_filter_that_leaves_one_token_gives_the_greedy_text(
    filters, request_of, one_step
) -> None:
    rows = torch.randn(1, 500, generator=torch.Generator().manual_seed(13))
    sampler = Sampler(1, 500)
    sampler.admit(0, request_of(temperature=1.0, **filters))
    assert {one_step(sampler, rows, [0])[0] for _ in range(50)} == {int(rows.argmax())}
