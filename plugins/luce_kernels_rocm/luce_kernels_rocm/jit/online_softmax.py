"""One step of attention by online softmax in base 2, for keys and values in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from luce_kernels_rocm.jit.cache_rows import cache_tile
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


@triton.jit
def entries_taken_in(
    q,
    queries,
    inside,
    start,
    cache,
    place,
    is_seen,
    scale,
    sums,
    best,
    total,
    TYPE: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """`taken_in` of rows `place` [KEYS] of a cache, which are keys and values, as far as `is_seen`.

    `sums` is a tuple of pieces [M, BD] of a row. With one piece `q` [M, BD] may be the queries;
    where it is None they are read piece by piece from the pointers `queries` [M], where `inside`.
    """
    M: tl.constexpr = queries.shape[0]
    KEYS: tl.constexpr = place.shape[0]
    scores = tl.zeros([M, KEYS], tl.float32)
    keys = sums[:0]
    for piece in tl.static_range(len(sums)):
        if q is None:
            at = piece * BD + tl.arange(0, BD)
            there = inside[:, None] & (at < D)[None, :]
            # `start` is never below 0, which the compiler cannot know: it would move the load out
            # of the loop.
            source = (queries + tl.minimum(start, 0))[:, None] + at[None, :]
            taken = tl.load(source, mask=there, other=0.0).to(COMPUTE)
        else:
            taken = q
        tile = cache_tile(cache, place, is_seen, piece, TYPE, D, BD, COMPUTE)
        scores = tl.dot(taken, tl.trans(tile), scores, input_precision="ieee")
        keys = keys + (tile,)  # noqa: RUF005
    scores = tl.where(is_seen[None, :], scores * (scale * LOG2_E), -float("inf"))
    now = tl.maximum(best, tl.max(scores, 1))
    base = tl.where(now == -float("inf"), 0.0, now)
    weights = tl.exp2(scores - base[:, None])
    kept = tl.exp2(best - base)
    total = total * kept + tl.sum(weights, 1)
    shares = weights.to(COMPUTE)
    added = sums[:0]
    for piece in tl.static_range(len(sums)):
        result = tl.dot(shares, keys[piece], sums[piece] * kept[:, None], input_precision="ieee")
        added = added + (result,)  # noqa: RUF005
    return added, now, total
