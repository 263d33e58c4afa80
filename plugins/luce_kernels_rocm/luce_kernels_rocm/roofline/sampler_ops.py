"""What the sampler asks for between steps."""

from __future__ import annotations

from luce_core.ops.program import Work
from luce_kernels_rocm.roofline.least import FLOAT
from luce_kernels_rocm.roofline.moved import Cost, Moved

# Bytes of a token's flag, and of a row's top_k and top_p.
_FLAG = 1
_WIDE = 8
# Times that a row is gone through for top_k, and again for top_p, beside the sum of what is there:
# for each three bits of the score at the end, for what lies above it, and for the flags.
_RANK_PASSES = 11 + 2


def kept_tokens(rows: int, vocab: int) -> Cost:
    """Of rows with min_p, top_k and top_p. The least: a score, as it is and by temperature, is
    compared with two ends, its share is taken and summed. Our programs find the ends by passes over
    scores, shares and flags, and are given shares that torch writes before."""
    scores, filters = 2 * FLOAT, 2 * _WIDE + FLOAT
    values = rows * vocab
    work = Work(values * (scores + _FLAG) + rows * filters, float_operations=4 * values)
    shares, least_share = 2 * FLOAT, 2 * FLOAT + _FLAG
    by_rank = _FLAG + _RANK_PASSES * (FLOAT + _FLAG) + _FLAG
    by_share = (FLOAT + _FLAG) + _RANK_PASSES * (2 * FLOAT + _FLAG) + _FLAG
    each = shares + least_share + by_rank + by_share
    return Cost(work, Moved(rows, values * each + rows * filters))
