"""draft_attention: one program for some rows of a block and the heads that share a key head.

It goes through what the block sees of the ring, oldest first, then through the block's own rows.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.arch import Arch, arch_of
from luce_kernels_rocm.configs import DRAFT_KEYS, DRAFT_TILE, all_registers, wave_pieces
from luce_kernels_rocm.jit.dtypes import TRITON_DTYPES
from luce_kernels_rocm.jit.online_softmax import rows_taken_in, taken_in
from luce_kernels_rocm.launch import Launch
from luce_kernels_rocm.ops.window_attention import RING_TYPES


@triton.jit
def _visible(position, key, inside, WINDOW: tl.constexpr, CAUSAL: tl.constexpr):
    """[M, KEYS]: which of the keys at positions `key` each row sees."""
    distance = position[:, None] - key[None, :]
    seen = inside[None, :] & (position >= 0)[:, None]
    if WINDOW > 0:
        seen = seen & (distance < WINDOW) & (distance > -WINDOW)
    if CAUSAL:
        seen = seen & (distance >= 0)
    return seen


@triton.jit
def _draft_attention(
    q,
    k,
    v,
    positions,
    cu_seqlens,
    slot_ids,
    context_lens,
    k_ring,
    v_ring,
    out,
    q_stride,
    k_stride,
    v_stride,
    scale,
    RING: tl.constexpr,
    REACH: tl.constexpr,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BGROUP: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    ROWS: tl.constexpr,
    PIECES: tl.constexpr,
    KEYS: tl.constexpr,
    RING_TYPE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    segment = tl.program_id(1)
    kv_head = tl.program_id(2)
    start = tl.load(cu_seqlens + segment)
    stop = tl.load(cu_seqlens + segment + 1)
    first = start + tl.program_id(0) * ROWS
    if first >= stop:
        return
    slot = tl.load(slot_ids + segment).to(tl.int64)
    past = tl.load(context_lens + segment)
    number = tl.arange(0, ROWS * BGROUP)
    row = first + number // BGROUP
    inside = (row < stop) & (number % BGROUP < GROUP)
    head = kv_head * GROUP + number % BGROUP
    position = tl.load(positions + row, mask=inside, other=-1)
    at = (tl.arange(0, PIECES) * BD)[:, None, None] + tl.arange(0, BD)[None, None, :]
    kept = inside[None, :, None] & (at < D)
    source = (row.to(tl.int64) * q_stride + head * D)[None, :, None] + at
    queries = tl.load(q + source, mask=kept, other=0.0).to(COMPUTE)
    best = tl.full([ROWS * BGROUP], -float("inf"), tl.float32)
    total = tl.zeros([ROWS * BGROUP], tl.float32)
    sums = tl.zeros([PIECES, ROWS * BGROUP, BD], tl.float32)
    oldest = tl.maximum(0, past - REACH)
    for begin in range(oldest, past, KEYS):
        key = begin + tl.arange(0, KEYS)
        read = begin + tl.arange(0, PIECES * KEYS) % KEYS
        sums, best, total = rows_taken_in(
            queries,
            k_ring,
            v_ring,
            (slot * RING + read % RING) * KV_HEADS + kv_head,
            read < past,
            _visible(position, key, key < past, WINDOW, CAUSAL),
            scale,
            sums,
            best,
            total,
            RING_TYPE,
            RING_TYPE,
            False,
            D,
            COMPUTE,
        )
    for begin in range(start, stop, KEYS):
        own = begin + tl.arange(0, KEYS)
        exists = own < stop
        key = tl.load(positions + own, mask=exists, other=0)
        loaded = exists[None, :, None] & (at < D)
        far = own.to(tl.int64)[None, :, None]
        keys = tl.load(k + far * k_stride + kv_head * D + at, mask=loaded, other=0.0).to(COMPUTE)
        values = tl.load(v + far * v_stride + kv_head * D + at, mask=loaded, other=0.0).to(COMPUTE)
        seen = _visible(position, key, exists, WINDOW, CAUSAL)
        sums, best, total = taken_in(queries, keys, values, seen, scale, sums, best, total)
    result = sums / tl.where(total == 0.0, 1.0, total)[None, :, None]
    target = ((row.to(tl.int64) * HEADS + head) * D)[None, :, None] + at
    tl.store(out + target, result.to(out.dtype.element_ty), mask=kept)


def draft_attention(
    q: Tensor,  # [T, heads, D]
    k: Tensor,  # [T, kv_heads, D]
    v: Tensor,  # [T, kv_heads, D]
    batch: PackedBatch,
    k_ring: Tensor,  # [slots + 1, ring, kv_heads, D]
    v_ring: Tensor,  # [slots + 1, ring, kv_heads, D]
    out: Tensor,  # [T, heads, D]
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int,
    causal: bool,
) -> None:
    rows, launch = _launch(
        arch_of(q.device),
        heads,
        kv_heads,
        head_dim,
        window,
        causal,
        k_ring.shape[1],
        k_ring.dtype,
        q.dtype,
    )
    grid = (triton.cdiv(batch.max_query, rows), batch.segments, kv_heads)
    where = (batch.positions, batch.cu_seqlens, batch.slot_ids, batch.context_lens)
    steps = (q.stride(0), k.stride(0), v.stride(0))
    launch(grid, q, k, v, *where, k_ring, v_ring, out, *steps, scale)


@cache
def _launch(
    arch: Arch,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int,
    causal: bool,
    ring: int,
    ring_dtype: torch.dtype,
    dtype: torch.dtype,
) -> tuple[int, Launch]:
    group = triton.next_power_of_2(heads // kv_heads)
    block = triton.next_power_of_2(head_dim)
    rows = max(1, DRAFT_TILE // group)
    pieces = wave_pieces(head_dim)
    launch = Launch(
        _draft_attention,
        warps=pieces,
        RING=ring,
        REACH=min(ring, window - 1) if window else ring,
        WINDOW=window,
        CAUSAL=causal,
        HEADS=heads,
        KV_HEADS=kv_heads,
        BGROUP=group,
        D=head_dim,
        BD=block // pieces,
        ROWS=rows,
        PIECES=pieces,
        KEYS=DRAFT_KEYS,
        RING_TYPE=RING_TYPES[ring_dtype],
        COMPUTE=TRITON_DTYPES[dtype],
        **all_registers(arch, pieces),
    )
    return rows, launch
