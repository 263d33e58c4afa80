from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from luce_core.request import SamplingParams
from luce_core.sampling.filters import kept_tokens, row_filters

VOCAB = 3000


def _kept(logits: torch.Tensor, rows: list[SamplingParams]) -> torch.Tensor:
    temperature = torch.tensor([p.temperature for p in rows])[:, None]
    scaled = (logits - logits.amax(1, keepdim=True)) / temperature
    return kept_tokens(logits, scaled, row_filters(rows, logits.shape[1], "cpu"))


def _oracle(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """transformers' warpers on one row, in the documented order, in float64."""
    row = (logits.double() / params.temperature)[None]
    if params.min_p > 0:
        row = MinPLogitsWarper(params.min_p)(None, row)
    if params.top_k > 0:
        row = TopKLogitsWarper(params.top_k)(None, row)
    if params.top_p < 1:
        row = TopPLogitsWarper(params.top_p)(None, row)
    return row[0].isfinite()


PARAMS = [
    SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m)
    for t in (0.3, 1.0, 7.0)
    for k, p, m in (
        (1, 1.0, 0.0),
        (40, 1.0, 0.0),
        (2999, 1.0, 0.0),
        (5000, 1.0, 0.0),
        (0, 0.0001, 0.0),
        (0, 0.5, 0.0),
        (0, 0.95, 0.0),
        (0, 1.0, 0.05),
        (0, 1.0, 1.0),
        (40, 0.9, 0.0),
        (40, 0.9, 0.02),
        (0, 0.9, 0.01),
    )
]


@pytest.mark.parametrize("spread", [0.01, 1.0, 5.0])
def test_filters_keep_what_transformers_keeps(spread: float) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(len(PARAMS), VOCAB, generator=generator) * spread
    kept = _kept(logits, PARAMS)
    for i, params in enumerate(PARAMS):
        difference = (kept[i] ^ _oracle(logits[i], params)).nonzero()[:, 0]
        # Tokens of less than 2^-44 of the best's probability are left out; see filters.
        reachable = (logits[i, difference] - logits[i].max()) / params.temperature > -30.4
        assert not reachable.any(), f"{params}: tokens {difference[reachable][:5].tolist()} differ"


def test_ties_at_the_top_k_border_go_to_the_lowest_index() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 1.0, 1.0, 3.0, 1.0, -0.0]])
    kept = _kept(logits, [SamplingParams(top_k=4)])
    assert kept[0].nonzero()[:, 0].tolist() == [1, 2, 3, 5]


def test_ties_at_the_top_p_border_go_to_the_lowest_index() -> None:
    kept = _kept(torch.zeros(2, 10), [SamplingParams(top_p=0.3), SamplingParams(top_p=0.31)])
    assert kept[0].nonzero()[:, 0].tolist() == [0, 1, 2]
    assert kept[1].nonzero()[:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("top_p", [1e-12, 0.0001, 0.4])
def test_top_p_keeps_at_least_the_best(top_p: float) -> None:
    logits = torch.tensor([[0.0, 9.0, 1.0]])
    assert _kept(logits, [SamplingParams(top_p=top_p)]).tolist() == [[False, True, False]]


def test_neighbours_that_scaling_merges_keep_their_order() -> None:
    logits = torch.tensor([[1.0, 1.0 + 2**-23, 3.0e6]])
    assert (logits[0, 0] - logits[0, 2]) == (logits[0, 1] - logits[0, 2])
    kept = _kept(logits, [SamplingParams(temperature=1e6, top_k=2)])
    assert kept.tolist() == [[False, True, True]]


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.integers(-12, 12), min_size=2, max_size=40),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([0.05, 0.3, 0.5, 0.77, 0.99, 1.0]),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_head_is_that_of_a_stable_sort(
    values: list[int], top_k: int, top_p: float, temperature: float
) -> None:
    logits = torch.tensor([values], dtype=torch.float32) / 4
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    if top_k:
        order = order[:top_k]
    weights = ((logits[0] - logits[0].max()) / temperature).double().exp()
    total = sum(weights[i].item() for i in order)
    expected, before = set(), 0.0
    for i in order:
        if top_p < 1.0 and abs(before - top_p * total) < 1e-6 * total:
            return  # the border is a matter of rounding
        if before < top_p * total or top_p == 1.0:
            expected.add(i)
        before += weights[i].item()
    assert set(_kept(logits, [params])[0].nonzero()[:, 0].tolist()) == expected


def test_a_row_without_top_p_keeps_all_in_any_company() -> None:
    """A total above 2^53 units has no exact float64."""
    logits = torch.zeros(2, VOCAB)
    logits[0, -1] = -30.0
    rows = [SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_p=0.5)]
    assert _kept(logits, rows)[0].all()


def test_kept_tokens_do_not_depend_on_the_batch() -> None:
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(len(PARAMS), 49_152, generator=generator) * 2
    together = _kept(logits, PARAMS)
    for i, params in enumerate(PARAMS):
        assert torch.equal(_kept(logits[i : i + 1], [params])[0], together[i])
