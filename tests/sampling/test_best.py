"""The best token of a row is that of `max`, whatever the row holds."""

from __future__ import annotations

import pytest
import torch

from luce_core.sampling.best import best_tokens

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("width", [128, 320, 512, 49152])
def test_it_is_the_maximum(width: int) -> None:
    scores = torch.randn(9, width, generator=torch.Generator().manual_seed(width))
    values, tokens = best_tokens(scores)
    assert torch.equal(values, scores.max(1).values)
    assert torch.equal(tokens, scores.max(1).indices)


@pytest.mark.parametrize(
    ("entries", "token"),
    [
        ({200: 3.0, 130: 3.0, 400: 3.0}, 130),
        ({300: INF, 10: 5.0}, 300),
        ({400: NAN, 300: INF, 401: NAN}, 400),
        ({131: NAN, 130: INF}, 131),
        ({0: 0.0}, 0),
    ],
)
def test_ties_go_to_the_lowest_id_and_nan_wins(entries: dict[int, float], token: int) -> None:
    scores = torch.full((2, 512), -1.0)
    for at, value in entries.items():
        scores[1, at] = value
    values, tokens = best_tokens(scores)
    assert tokens.tolist() == [0, token]
    assert values[1].isnan() == any(value != value for value in entries.values())


def test_a_row_without_a_candidate_has_its_first_token() -> None:
    values, tokens = best_tokens(torch.full((1, 256), -INF))
    assert (values.item(), tokens.item()) == (-INF, 0)


def test_columns_of_a_wider_tensor_are_looked_through_in_place() -> None:
    wide = torch.arange(2 * 300.0).view(2, 300)
    assert best_tokens(wide[:, 10:266])[1].tolist() == [255, 255]


def test_no_rows_have_no_tokens() -> None:
    assert best_tokens(torch.empty(0, 256))[1].shape == (0,)
