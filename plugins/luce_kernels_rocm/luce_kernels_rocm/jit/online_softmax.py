"""One step of attention by online softmax in base 2, for keys and values in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from luce_kernels_rocm.jit.softmax_sum import LOG2_E


@triton.jit
def taken_in(q, keys, values, seen, scale, sums, best, total):
    """(sums [M, BD], best [M], total [M]) with keys and values [KEYS, BD] taken in as far as `seen`
    [M or 1, KEYS]. Sums and total are relative to 2^best, which is -inf before the first key."""
    scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * (scale * LOG2_E)
    scores = tl.where(seen, scores, -float("inf"))
    now = tl.maximum(best, tl.max(scores, 1))
    # Without keys so far there is nothing to rescale, and -inf - -inf is no number.
    base = tl.where(now == -float("inf"), 0.0, now)
    weights = tl.exp2(scores - base[:, None])
    kept = tl.exp2(best - base)
    total = total * kept + tl.sum(weights, 1)
    sums = tl.dot(weights.to(q.dtype), values, sums * kept[:, None], input_precision="ieee")
    return sums, now, total
