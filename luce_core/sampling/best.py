"""The best token of each row."""

from __future__ import annotations

from torch import Tensor

# Values whose largest is found first. Widths of vocabularies are multiples of it, or nearly none.
_GROUP = 128


def best_tokens(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Values [R] and token ids [R] of `scores` [R, V], as `scores.max(1)`: ties go to the lowest
    id, and the first NaN wins.

    On a CPU torch takes one value at a time where the place is wanted too, so the place is looked
    for in one group only: the first of those that have the largest value.
    """
    rows, width = scores.shape
    if scores.device.type != "cpu" or width % _GROUP:
        best = scores.max(1)
        return best.values, best.indices
    groups = scores.view(rows, width // _GROUP, _GROUP)
    group = groups.amax(2).max(1).indices
    best = groups.take_along_dim(group[:, None, None], 1).max(2)
    return best.values[:, 0], best.indices[:, 0] + group * _GROUP
