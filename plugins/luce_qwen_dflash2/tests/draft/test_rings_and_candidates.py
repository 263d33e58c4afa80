"""The two rules that no comparison of whole drafts would show broken."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from luce_qwen_dflash2.draft.config import DraftConfig
from luce_qwen_dflash2.draft.rings import Rings, ring_bytes, ring_sizes
from luce_qwen_dflash2.ops.candidate_select import best_tokens
from torch import Tensor

INF, NAN = float("inf"), float("nan")


def test_an_injection_names_no_entry_twice(first: DraftConfig) -> None:
    """Kernels write rows in any order: of tokens that share an entry only the last is placed."""
    rings = Rings(
        replace(first, windows=(16, 64, 0)),
        slots=2,
        max_context=100,
        max_rows=300,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    assert [ring.k.shape[:2] for ring in rings.layers] == [(3, 16), (3, 64), (3, 100)]
    rings.place([(1, 5, 90), (0, 200, 17)])
    for ring in rings.layers:
        size = ring.k.shape[1]
        rows = ring.rows[:107].tolist()
        kept = [row for row in rows if row != 2 * size]
        assert len(kept) == len(set(kept)) == min(size, 90) + min(size, 17)
        assert rows[90 - min(size, 90) : 90] == [
            size + p % size for p in range(95 - min(size, 90), 95)
        ]
        assert rows[107 - min(size, 17) :] == [p % size for p in range(217 - min(size, 17), 217)]


def test_no_ring_is_longer_than_the_context(first: DraftConfig) -> None:
    assert ring_sizes(first, 40) == (40, 40, 40)
    assert ring_sizes(first, 1000) == (64, 64, 1000)
    assert ring_bytes(first, 1000, torch.float16) == 2 * 2 * 2 * 32 * 1128


@pytest.mark.parametrize(
    "logits",
    [
        [0.0] * 9,
        [1.0, 3.0, 3.0, 2.0, 3.0, 3.0, 0.0],
        [5.0, 1.0, 1.0, 1.0, 1.0, 9.0],
        [-INF, -INF, 2.0, -INF, -INF],
        [INF, 1.0, INF, 2.0, 0.0],
        [float(i % 3) for i in range(50)],
    ],
)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_candidates_are_the_largest_logits_and_the_lowest_ids_of_equal_ones(
    logits: list[float], count: int
) -> None:
    row = torch.tensor(logits)
    expected: Tensor = row.sort(descending=True, stable=True).indices[:count].sort().values
    assert torch.equal(best_tokens(row, count), expected)


def test_nan_is_no_candidate_and_nothing_to_offer_is_token_0() -> None:
    assert NAN not in torch.tensor([NAN, 1.0, 2.0])[best_tokens(torch.tensor([NAN, 1.0, 2.0]), 3)]
    assert best_tokens(torch.full((5,), NAN), 2).tolist() == [0]
