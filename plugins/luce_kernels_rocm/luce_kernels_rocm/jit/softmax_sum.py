"""Attention of a tile of queries over a run of keys, by online softmax in base 2."""

from __future__ import annotations

import triton
import triton.language as tl

from luce_kernels_rocm.jit.cache_rows import cache_tile

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def weighed(scores, seen, scale, best, total):
    """(weights [M, KEYS], kept [M], best [M], total [M]): what values of further keys and, before
    them, sums so far are to be multiplied by, and best and total with the keys taken in as far as
    `seen` [M or 1, KEYS]. All are relative to 2^best, which is -inf before the first key."""
    scores = tl.where(seen, scores * (scale * LOG2_E), -float("inf"))
    now = tl.maximum(best, tl.max(scores, 1))
    # A query without keys so far has nothing to rescale, and -inf - -inf is no number.
    base = tl.where(now == -float("inf"), 0.0, now)
    weights = tl.exp2(scores - base[:, None])
    kept = tl.exp2(best - base)
    return weights, kept, now, total * kept + tl.sum(weights, 1)


@triton.jit
def attended(
    queries,
    is_query,
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
    PIECES: tl.constexpr,
    RELOAD: tl.constexpr,
    KEYS: tl.constexpr,
    INDEX: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Keys first..last for the queries that begin at pointers [M], where `is_query` [M] is true, at
    `position` [M], each for keys up to its own.

    Returns (PIECES sums [M, BD], best [M], total [M]): sums and total are relative to 2^best, which
    is -inf where a query has no key. Keys past `last` and in the null block are not read. SHARED
    takes the keys as values. A head's D values are worked on in PIECES of BD. RELOAD reads the
    queries for each run of keys instead of keeping them in registers, as more pieces than one need.
    Places in the caches are counted in INDEX.
    """
    M: tl.constexpr = queries.shape[0]
    d = tl.arange(0, BD)
    best = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    sums = (tl.zeros([M, BD], tl.float32),) * PIECES
    if not RELOAD:
        there = is_query[:, None] & (d < D)[None, :]
        q = tl.load(queries[:, None] + d[None, :], mask=there, other=0.0).to(COMPUTE)
    for start in range(first, last + 1, KEYS):
        key = start + tl.arange(0, KEYS)
        block = tl.load(table + key // BLOCK_SIZE, mask=key <= last, other=null_block)
        inside = block != null_block
        row = (block.to(INDEX) * BLOCK_SIZE + key % BLOCK_SIZE) * KV_HEADS + head
        scores = tl.zeros([M, KEYS], tl.float32)
        keys = sums[:0]
        for piece in tl.static_range(PIECES):
            if RELOAD:
                at = piece * BD + d
                there = is_query[:, None] & (at < D)[None, :]
                # `start` is never below 0, which the compiler cannot know: it would move the load
                # out of the loop.
                begin = queries + tl.minimum(start, 0)
                q = tl.load(begin[:, None] + at[None, :], mask=there, other=0.0).to(COMPUTE)
            tile = cache_tile(k_cache, row, inside, piece, K_TYPE, D, BD, COMPUTE)
            scores = tl.dot(q, tl.trans(tile), scores, input_precision="ieee")
            if SHARED:
                keys = keys + (tile,)  # noqa: RUF005
        seen = inside[None, :] & (key[None, :] <= position[:, None])
        weights, kept, best, total = weighed(scores, seen, scale, best, total)
        shares = weights.to(COMPUTE)
        added = sums[:0]
        for piece in tl.static_range(PIECES):
            scaled = sums[piece] * kept[:, None]
            if SHARED:
                result = tl.dot(shares, keys[piece], scaled, input_precision="ieee")
            else:
                tile = cache_tile(v_cache, row, inside, piece, V_TYPE, D, BD, COMPUTE)
                result = tl.dot(shares, tile, scaled, input_precision="ieee")
            added = added + (result,)  # noqa: RUF005
        sums = added
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
