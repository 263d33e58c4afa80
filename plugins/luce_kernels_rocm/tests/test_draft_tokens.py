"""Draft tokens where scores leave nothing to choose by, and where only noise decides."""

from __future__ import annotations

import pytest
import torch
from luce_kernels_rocm.ops.candidate_select import candidate_select
from luce_kernels_rocm.ops.draft_draw import draft_draw
from torch import Tensor

from luce_core.ops.cases import CaseMaker

blocks = pytest.importorskip("luce_qwen_dflash2.ops.case_blocks")
draws = pytest.importorskip("luce_qwen_dflash2.ops.draft_draw")
selects = pytest.importorskip("luce_qwen_dflash2.ops.candidate_select")

NAN, INF = float("nan"), float("inf")
STRANGE = (
    [NAN, NAN],
    [1.0, NAN, 7.0],
    [-INF] * 20,
    [INF, 3.0, INF, NAN],
    [2.0, INF, INF],
    [NAN, 5.0, 5.0, NAN, 5.0, 4.0],
    [-INF, -INF, 1.0],
)


def strange_rows(width: int) -> Tensor:
    """Each row between ordinary values, which are lower."""
    rows = torch.linspace(-9.0, -5.0, width).repeat(len(STRANGE), 1)
    for row, values in zip(rows, STRANGE, strict=True):
        row[3 : 3 + len(values)] = torch.tensor(values)
    rows[2] = -INF
    return rows


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_rows_without_an_ordinary_best_value_give_the_references_tokens(temperature: float) -> None:
    logits = strange_rows(40)
    width = 1 + len(STRANGE)
    maker = CaseMaker("cpu", torch.float32)
    batch = blocks.block_batch([(0, width)], maker.device)
    _, keys = draws.slot_noise(maker, 1)
    noise = (torch.full((2,), temperature), keys)
    ours, wanted = torch.full((2, len(logits)), -7, dtype=torch.int32)
    draft_draw(logits, batch, *noise, ours)
    draws.draft_draw(logits, batch, *noise, wanted)
    assert ours.tolist() == wanted.tolist()

    # Scores of pairs that are large enough to choose any token that is offered.
    facts = {"top_k": 4, "rank": 256, "predecessor_type": "Q8_0", "successor_type": "Q8_0"}
    for _ in range(3):
        books = tuple(maker.weight(40, 256, "Q8_0").blocks for _ in range(2))
        rows = (logits, maker.normal(len(logits), 256, std=300.0), batch, *noise, *books)
        candidate_select(*rows, ours, **facts)
        selects.candidate_select(*rows, wanted, **facts)
        assert ours.tolist() == wanted.tolist()


def test_where_noise_decides_the_reference_draws_the_same_tokens() -> None:
    """A vocabulary of several parts, all tokens alike: who is spared its logarithms cannot win."""
    maker = CaseMaker("cpu", torch.float32, seed=3)
    batch = blocks.block_batch([(0, 13)], maker.device)
    logits = maker.normal(12, 9001, std=0.01)
    keys = torch.arange(16).repeat(2, 1) * 0x5851F42D4C957F2D
    ours, wanted = torch.full((2, 12), -7, dtype=torch.int32)
    for drawn, function in ((ours, draft_draw), (wanted, draws.draft_draw)):
        function(logits, batch, torch.ones(2), keys, drawn)
    assert ours.tolist() == wanted.tolist()
    assert len(set(ours.tolist())) > 10
