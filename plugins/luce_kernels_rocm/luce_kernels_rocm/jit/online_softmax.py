"""One step of attention by online softmax in base 2."""

from __future__ import annotations

import triton
import triton.language as tl

from luce_kernels_rocm.jit.cache_rows import cache_tile
from luce_kernels_rocm.jit.softmax_sum import weighed


@triton.jit
def _weighed_pieces(q, keys, seen, scale, best, total):
    """`weighed` of keys [PIECES, KEYS, BD], whose pieces' scores are summed."""
    scores = tl.sum(tl.dot(q, tl.permute(keys, (0, 2, 1)), input_precision="ieee"), 0)
    return weighed(scores, seen, scale, best, total)


@triton.jit
def _summed_pieces(weights, kept, values, sums):
    """Sums [PIECES, M, BD] with values [PIECES, KEYS, BD], by what `weighed` gives."""
    shares = weights.to(values.dtype)[None, :, :]
    shares = tl.broadcast_to(shares, [values.shape[0], weights.shape[0], weights.shape[1]])
    return tl.dot(shares, values, sums * kept[None, :, None], input_precision="ieee")


@triton.jit
def taken_in(q, keys, values, seen, scale, sums, best, total):
    """(sums [PIECES, M, BD], best [M], total [M]) with keys and values [PIECES, KEYS, BD] taken in
    as far as `seen` [M or 1, KEYS]. Waves work on pieces of a head side by side. Sums and total are
    relative to 2^best, which is -inf before the first key."""
    weights, kept, best, total = _weighed_pieces(q, keys, seen, scale, best, total)
    return _summed_pieces(weights, kept, values, sums), best, total


@triton.jit
def rows_taken_in(
    q,
    k_cache,
    v_cache,
    place,
    is_read,
    seen,
    scale,
    sums,
    best,
    total,
    K_TYPE: tl.constexpr,
    V_TYPE: tl.constexpr,
    SHARED: tl.constexpr,
    D: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """`taken_in` of rows of caches; SHARED takes keys as values. `place` [PIECES * KEYS] are the
    rows, once for each piece, and `is_read` says which of them are read."""
    PIECES: tl.constexpr = q.shape[0]
    BD: tl.constexpr = q.shape[2]
    KEYS: tl.constexpr = seen.shape[1]
    piece = (tl.arange(0, PIECES * KEYS) // KEYS)[:, None]
    keys = cache_tile(k_cache, place, is_read, piece, K_TYPE, D, BD, COMPUTE)
    keys = tl.reshape(keys, [PIECES, KEYS, BD])
    weights, kept, best, total = _weighed_pieces(q, keys, seen, scale, best, total)
    values = keys
    if not SHARED:
        values = cache_tile(v_cache, place, is_read, piece, V_TYPE, D, BD, COMPUTE)
        values = tl.reshape(values, [PIECES, KEYS, BD])
    return _summed_pieces(weights, kept, values, sums), best, total
