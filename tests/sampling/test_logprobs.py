from __future__ import annotations

import math

import pytest
import torch

from luce_core.sampling.sampler import Sampler

VOCAB = 400
SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 2.0, "top_p": 0.5},
    {"temperature": 1.0, "logit_bias": ((17, 100.0),)},
    {"temperature": 0.0, "logit_bias": ((17, 5.0), (18, -100.0))},
    {"temperature": 1.0, "repetition_penalty": 1.5, "presence_penalty": 1.0},
]


def _rows(count: int) -> torch.Tensor:
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(31)) * 3


@pytest.mark.parametrize("params", SETTINGS)
@pytest.mark.parametrize("top", [0, 1, 20])
def test_logprobs_are_the_models_own(params, top, request_of) -> None:
    rows = _rows(1)
    sampler = Sampler(1, VOCAB)
    sampler.admit(0, request_of(prompt=tuple(range(0, VOCAB, 3)), logprobs=top, **params))
    (result,) = sampler.accept(rows, [0, 1], [0], [[]])
    (entry,) = result.logprobs
    expected = torch.log_softmax(rows[0].double(), 0)
    assert entry.token == result.tokens[0]
    assert entry.logprob == pytest.approx(expected[entry.token].item(), abs=1e-5)
    assert entry.logprob < 0.0
    best = expected.sort(descending=True, stable=True)
    assert [token for token, _ in entry.top] == best.indices[:top].tolist()
    assert [value for _, value in entry.top] == pytest.approx(best.values[:top].tolist(), abs=1e-5)
    assert sum(math.exp(value) for _, value in entry.top) <= 1 + 1e-5


def test_a_token_outside_the_best_is_still_reported(request_of) -> None:
    rows = torch.zeros(1, VOCAB)
    rows[0, 5] = 9.0
    sampler = Sampler(1, VOCAB)
    sampler.admit(0, request_of(temperature=0.0, logprobs=1, logit_bias=((5, -100.0),)))
    (entry,) = sampler.accept(rows, [0, 1], [0], [[]])[0].logprobs
    assert entry.token == 0
    assert [token for token, _ in entry.top] == [5]


def test_equal_logprobs_are_listed_by_token_id(request_of) -> None:
    sampler = Sampler(1, VOCAB)
    sampler.admit(0, request_of(temperature=0.0, logprobs=4))
    rows = torch.zeros(1, VOCAB)
    rows[0, 200] = 1.0
    (entry,) = sampler.accept(rows, [0, 1], [0], [[]])[0].logprobs
    assert [token for token, _ in entry.top] == [200, 0, 1, 2]


def test_each_accepted_token_has_the_logprob_of_its_own_row(request_of) -> None:
    rows = _rows(5)
    best = rows.argmax(1).tolist()
    sampler = Sampler(3, VOCAB)
    sampler.admit(0, request_of(temperature=0.0))
    sampler.admit(2, request_of(temperature=0.0, logprobs=2))
    wrong = (best[3] + 1) % VOCAB
    results = sampler.accept(rows, [0, 1, 5], [0, 2], [[], [best[1], best[2], wrong]])
    assert results[0].logprobs is None
    assert [entry.token for entry in results[1].logprobs] == best[1:4]
    expected = torch.log_softmax(rows, 1)
    for entry, row in zip(results[1].logprobs, (1, 2, 3), strict=True):
        assert entry.logprob == pytest.approx(expected[row, entry.token].item(), abs=1e-5)
        assert len(entry.top) == 2


def test_more_than_the_vocabulary_lists_the_vocabulary(request_of) -> None:
    sampler = Sampler(1, 3)
    sampler.admit(0, request_of(temperature=0.0, logprobs=20))
    (entry,) = sampler.accept(torch.tensor([[0.0, 2, 1]]), [0, 1], [0], [[]])[0].logprobs
    assert [token for token, _ in entry.top] == [1, 2, 0]
