"""The head of a ranking by exact integer mass, without sorting the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

# Buckets are the leading bits of a float's distance from the best score: 32 for each doubling, so
# that the one bucket which is sorted stays small at every temperature.
_BUCKET_SHIFT = 18
_BUCKETS = 1 << (31 - _BUCKET_SHIFT)


def score_buckets(scaled: Tensor) -> Tensor:
    """[R, V] float32, at most 0 -> int64 [R, V] that never descends where scores descend."""
    return (scaled.abs().view(torch.int32) >> _BUCKET_SHIFT).long()


def head_mask(logits: Tensor, buckets: Tensor, mass: Tensor, target: Tensor) -> Tensor:
    """[R, V] bool: walk each row best first (ties: lowest index first) until `target` is reached.

    `buckets` ascend where `logits` descend; `mass` is int64 [R, V], never negative; `target` is
    int64 [R], from 1 to the row's total. The bucket in which the walk ends is found by a histogram
    and sorted. Integer sums do not depend on their order, hence nor does the result on batch or
    device.
    """
    counts = torch.zeros(logits.shape[0], _BUCKETS, dtype=torch.int64, device=logits.device)
    counts.scatter_add_(1, buckets, mass)
    reached = counts.cumsum(1)
    # A row without finite scores may not reach its target; its result is not used.
    last = torch.searchsorted(reached, target[:, None]).clamp_(max=_BUCKETS - 1)
    in_last = counts.gather(1, last)[:, 0]
    remaining = target - reached.gather(1, last)[:, 0] + in_last

    row, token = ((buckets == last) & (mass > 0)).nonzero(as_tuple=True)
    order = logits[row, token].argsort(descending=True, stable=True)
    order = order[row[order].argsort(stable=True)]
    row, token = row[order], token[order]
    own = mass[row, token]
    # One running sum over all rows; where it wraps, the differences are still exact.
    before = own.cumsum(0) - own - (in_last.cumsum(0) - in_last)[row]

    head = buckets < last
    head[row, token] = before < remaining[row]
    return head
