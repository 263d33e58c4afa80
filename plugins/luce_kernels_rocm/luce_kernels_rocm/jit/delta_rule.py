"""The state arithmetic of the gated delta rule: one definition for decode, verify and replay, and
where prompts are cut into chunks.

One rounding for the decay and one for what is added, by an explicit fused multiply-add: whatever
a compiler makes of the code around, replaying logged rows gives the bits of decoding them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def state_tile(column, D_K: tl.constexpr, D_V: tl.constexpr, BK: tl.constexpr):
    """(places [BK, BV] in a head's state, whether they exist) of the columns [BV]."""
    k = tl.arange(0, BK)[:, None]
    return k * D_V + column[None, :], (k < D_K) & (column < D_V)[None, :]


@triton.jit
def changed(decayed, key, delta):
    """decayed + key delta^T."""
    key, delta = tl.broadcast(key[:, None], delta[None, :])
    return tl.fma(key, delta, decayed)


@triton.jit
def chunk_cut(position, rows, CHUNK: tl.constexpr):
    """(rows before the first whole chunk, whole chunks) of a segment that begins at `position`.
    Chunks begin at multiples of CHUNK, so that they are the same in every cut between them."""
    before = (CHUNK - position % CHUNK) % CHUNK
    return before, tl.maximum(rows - before, 0) // CHUNK
