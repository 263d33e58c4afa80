"""Which tokens may be drawn: min_p, then top_k, then top_p, on temperature-scaled scores."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from luce_core.request import SamplingParams
from luce_core.sampling.ranking import head_mask, score_buckets

# Weights are probabilities relative to the best token, in units of 2^-44: sums over 2^19 tokens
# stay exact in int64. Weight 0 means a score more than 30 below the best, which no noise bridges
# (noise spans 26.004), so leaving such tokens out changes no draw.
_WEIGHT_SCALE = float(1 << 44)


class RowFilters(NamedTuple):
    """The filters of R rows: tensors [R], and whether any row uses each of them (host)."""

    top_k: Tensor  # int64, vocabulary size where off
    top_p: Tensor  # float64, 1 where off
    min_p: Tensor  # float32, 0 where off
    any_top_k: bool
    any_top_p: bool
    any_min_p: bool


def has_filters(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def row_filters(rows: list[SamplingParams], vocab_size: int, device: str) -> RowFilters:
    """One entry for each row, in order."""
    top_k = [min(p.top_k, vocab_size) if p.top_k > 0 else vocab_size for p in rows]
    return RowFilters(
        top_k=torch.tensor(top_k, dtype=torch.int64, device=device),
        top_p=torch.tensor([p.top_p for p in rows], dtype=torch.float64, device=device),
        min_p=torch.tensor([p.min_p for p in rows], dtype=torch.float32, device=device),
        any_top_k=any(p.top_k > 0 for p in rows),
        any_top_p=any(p.top_p < 1.0 for p in rows),
        any_min_p=any(p.min_p > 0.0 for p in rows),
    )


def kept_tokens(logits: Tensor, scaled: Tensor, filters: RowFilters) -> Tensor:
    """[R, V] bool: the tokens that may be drawn; the best one always is.

    `scaled` is (logits - the row's best) / temperature, float32. The order of tokens is taken from
    `logits`, since scaling can merge neighbours. Ties go to the lowest index. top_p keeps the
    smallest head whose share of what min_p and top_k left is at least top_p.
    """
    weights = scaled.exp().mul_(_WEIGHT_SCALE).long()
    kept = weights > 0
    if filters.any_min_p:
        kept &= scaled >= filters.min_p.log()[:, None]
    if not (filters.any_top_k or filters.any_top_p):
        return kept
    buckets = score_buckets(scaled)
    if filters.any_top_k:
        ones = kept.long()
        kept &= head_mask(logits, buckets, ones, torch.minimum(filters.top_k, ones.sum(1)))
    if filters.any_top_p:
        mass = weights.mul_(kept) if filters.any_min_p or filters.any_top_k else weights
        total = mass.sum(1)
        target = (filters.top_p * total).ceil_().long().clamp_(min=1)
        # A row without top_p keeps all: its total may be rounded down in float64.
        target = torch.where(filters.top_p < 1.0, torch.minimum(target, total), total)
        kept &= head_mask(logits, buckets, mass, target)
    return kept
