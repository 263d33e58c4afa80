"""The model's own log-probabilities of chosen tokens and of the best ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from luce_core.plan import TokenLogprob


def token_logprobs(
    logits: Tensor, rows: Sequence[int], tokens: Sequence[int], top: Sequence[int]
) -> list[TokenLogprob]:
    """log_softmax of raw `logits` [L, V] at `rows`: of `tokens`, with the `top[i]` best of each.

    The best are sorted by log-probability, ties by token id.
    """
    index = torch.tensor(rows, dtype=torch.int64, device=logits.device)
    picks = torch.tensor(tokens, dtype=torch.int64, device=logits.device)
    scores = torch.log_softmax(logits.index_select(0, index).float(), dim=-1)
    own = scores.gather(1, picks[:, None])[:, 0].tolist()
    return [
        TokenLogprob(token, logprob, _best(scores[i], top[i]))
        for i, (token, logprob) in enumerate(zip(tokens, own, strict=True))
    ]


def _best(scores: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    count = min(count, scores.shape[0])
    if count == 0:
        return ()
    # topk breaks ties in no fixed order: take all that reach the last place, then sort stably.
    ids = (scores >= scores.topk(count).values[-1]).nonzero()[:, 0]
    values, order = scores[ids].sort(descending=True, stable=True)
    return tuple(zip(ids[order[:count]].tolist(), values[:count].tolist(), strict=True))
