"""Attention of a tile of queries over a run of keys, by online softmax in base 2."""

from __future__ import annotations

import triton
import triton.language as tl

from luce_kernels_rocm.jit.cache_rows import cache_tile

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def attended(
    q,
    position,
    table,
    head,
    first,
    last,
    null_block,
    k_cache,
    v_cache,
    scale,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    K_TYPE: tl.constexpr,
    V_TYPE: tl.constexpr,
    SHARED: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    KEYS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Keys first..last for queries q [M, BD] at `position` [M], each for keys up to its own.

    Returns (sums [M, BD], best [M], total [M]): sums and total are relative to 2^best, which is
    -inf where a query has no key. Keys past `last` and in the null block are not read. SHARED takes
    the keys as values.
    """
    M: tl.constexpr = q.shape[0]
    best = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    sums = tl.zeros([M, BD], tl.float32)
    for start in range(first, last + 1, KEYS):
        key = start + tl.arange(0, KEYS)
        block = tl.load(table + key // BLOCK_SIZE, mask=key <= last, other=null_block)
        inside = block != null_block
        row = (block.to(tl.int64) * BLOCK_SIZE + key % BLOCK_SIZE) * KV_HEADS + head
        keys = cache_tile(k_cache, row, inside, K_TYPE, D, BD, COMPUTE)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * (scale * LOG2_E)
        seen = inside[None, :] & (key[None, :] <= position[:, None])
        scores = tl.where(seen, scores, -float("inf"))
        now = tl.maximum(best, tl.max(scores, 1))
        # A query without keys so far has nothing to rescale, and -inf - -inf is no number.
        base = tl.where(now == -float("inf"), 0.0, now)
        weights = tl.exp2(scores - base[:, None])
        kept = tl.exp2(best - base)
        total = total * kept + tl.sum(weights, 1)
        values = keys if SHARED else cache_tile(v_cache, row, inside, V_TYPE, D, BD, COMPUTE)
        sums = sums * kept[:, None]
        sums = tl.dot(weights.to(COMPUTE), values, sums, input_precision="ieee")
        best = now
    return sums, best, total


@triton.jit
def with_sink(best, total, sinks, head, inside):
    """(kept [M], total [M]): what sums are to be scaled with and divided by, once each head's sink
    has taken its share of the softmax; without sinks nothing changes."""
    if sinks is None:
        kept = tl.full(best.shape, 1.0, tl.float32)
    else:
        sink = tl.load(sinks + head, mask=inside, other=-float("inf")).to(tl.float32) * LOG2_E
        now = tl.maximum(best, sink)
        base = tl.where(now == -float("inf"), 0.0, now)
        kept = tl.exp2(best - base)
        total = total * kept + tl.exp2(sink - base)
    return kept, total
