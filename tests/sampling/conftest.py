"""Builders shared by the sampling tests; session-scoped so that hypothesis may use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from luce_core.request import Request, RequestTimes, SamplingParams
from luce_core.sampling.sampler import Sampler


def _request(
    *,
    prompt: tuple[int, ...] = (),
    generated: tuple[int, ...] = (),
    max_tokens: int = 1 << 20,
    stop_ids: frozenset[int] = frozenset(),
    choice_index: int = 0,
    **params: Any,
) -> Request:
    return Request(
        id=1,
        prompt=prompt,
        params=SamplingParams(**params),
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        times=RequestTimes(0.0),
        choice_index=choice_index,
        generated=list(generated),
    )


def _one_step(sampler: Sampler, logits: torch.Tensor, slot_ids: list[int]) -> list[int]:
    """A step of plain rows that must all succeed: one token for each slot."""
    results = sampler.accept(
        logits, list(range(len(slot_ids) + 1)), slot_ids, [[] for _ in slot_ids]
    )
    assert all(r.error is None and len(r.tokens) == 1 for r in results)
    return [r.tokens[0] for r in results]


def _chi_square_p(observed: torch.Tensor, probabilities: torch.Tensor) -> float:
    """p-value of Pearson's test; categories expected fewer than 5 times are pooled."""
    observed = observed.double().flatten()
    expected = probabilities.double().flatten() * observed.sum()
    assert (observed[expected == 0] == 0).all(), "a token of probability 0 was drawn"
    rare = expected < 5
    if rare.any():
        observed = torch.cat([observed[~rare], observed[rare].sum()[None]])
        expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
        observed, expected = observed[expected > 1e-9], expected[expected > 1e-9]
    if len(expected) == 1:
        return 1.0
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


@pytest.fixture(scope="session")
def request_of() -> Callable[..., Request]:
    return _request


@pytest.fixture(scope="session")
def one_step() -> Callable[[Sampler, torch.Tensor, list[int]], list[int]]:
    return _one_step


@pytest.fixture(scope="session")
def chi_square_p() -> Callable[[torch.Tensor, torch.Tensor], float]:
    return _chi_square_p
