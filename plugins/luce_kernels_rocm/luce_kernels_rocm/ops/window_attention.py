"""window_attention and, with picks, sparse_attention: one program for some heads of a row.

It goes through the ring's entries of the row's window, oldest first, then through the compressed
entries: all that are complete by the row's position, or those that the row has picked, in the
order of the picks.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.configs import WINDOW_HEADS, wave_keys, wave_pieces
from luce_kernels_rocm.jit.dtypes import TRITON_DTYPES
from luce_kernels_rocm.jit.online_softmax import rows_taken_in
from luce_kernels_rocm.jit.segments import segment_of
from luce_kernels_rocm.jit.softmax_sum import with_sink
from luce_kernels_rocm.launch import Launch

RING_TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


@triton.jit
def _attend(
    q,
    picks,
    positions,
    cu_seqlens,
    slot_ids,
    block_tables,
    ring,
    cache,
    sinks,
    out,
    segments,
    q_stride,
    picks_stride,
    table_stride,
    scale,
    RING: tl.constexpr,
    WINDOW: tl.constexpr,
    RATIO: tl.constexpr,
    TOP_K: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    PIECES: tl.constexpr,
    M: tl.constexpr,
    KEYS: tl.constexpr,
    RING_TYPE: tl.constexpr,
    CACHE_TYPE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1) * M + tl.arange(0, M)
    inside = head < HEADS
    segment = segment_of(cu_seqlens, segments, row)
    slot = tl.load(slot_ids + segment).to(tl.int64)
    position = tl.load(positions + row)
    at = (tl.arange(0, PIECES) * BD)[:, None, None] + tl.arange(0, BD)[None, None, :]
    kept = inside[None, :, None] & (at < D)
    queries = q + row.to(tl.int64) * q_stride + (head * D)[None, :, None] + at
    taken = tl.load(queries, mask=kept, other=0.0).to(COMPUTE)
    best = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    sums = tl.zeros([PIECES, M, BD], tl.float32)
    key = tl.arange(0, KEYS)
    read = tl.arange(0, PIECES * KEYS) % KEYS
    oldest = tl.maximum(0, position - WINDOW + 1)
    for start in range(oldest, position + 1, KEYS):
        place = slot * RING + (start + read) % RING
        sums, best, total = rows_taken_in(
            taken,
            ring,
            ring,
            place,
            start + read <= position,
            (start + key <= position)[None, :],
            scale,
            sums,
            best,
            total,
            RING_TYPE,
            RING_TYPE,
            True,
            D,
            COMPUTE,
        )
    if RATIO > 0:
        PER_BLOCK: tl.constexpr = 128 // RATIO
        table = block_tables + segment * table_stride
        count = (position + 1) // RATIO
        if picks is not None:
            count = tl.minimum(count, TOP_K)
        for start in range(0, count, KEYS):
            is_read = start + read < count
            entry = start + read
            if picks is not None:
                chosen = picks + row.to(tl.int64) * picks_stride + entry
                entry = tl.load(chosen, mask=is_read, other=0.0).to(tl.int32)
            block = tl.load(table + entry // PER_BLOCK, mask=is_read, other=0).to(tl.int64)
            sums, best, total = rows_taken_in(
                taken,
                cache,
                cache,
                block * PER_BLOCK + entry % PER_BLOCK,
                is_read,
                (start + key < count)[None, :],
                scale,
                sums,
                best,
                total,
                CACHE_TYPE,
                CACHE_TYPE,
                True,
                D,
                COMPUTE,
            )
    shrunk, total = with_sink(best, total, sinks, head, inside)
    factor = shrunk / tl.where(total == 0.0, 1.0, total)
    target = out + ((row.to(tl.int64) * HEADS + head) * D)[None, :, None] + at
    tl.store(target, (sums * factor[None, :, None]).to(out.dtype.element_ty), mask=kept)


def window_attention(
    q: Tensor,  # [T, heads, D]
    batch: PackedBatch,
    ring: Tensor,  # [slots + 1, ring, D]
    cache: Tensor,  # [blocks + 1, 128 / ratio, row]
    sinks: Tensor,  # [heads] float32
    out: Tensor,  # [T, heads, D]
    *,
    heads: int,
    head_dim: int,
    window: int,
    ratio: int,
    cache_type: str,
    scale: float,
    picks: Tensor | None = None,  # [T, top_k] float32
) -> None:
    launch = _launch(
        heads,
        head_dim,
        window,
        ratio,
        0 if picks is None else picks.shape[1],
        ring.shape[1],
        ring.dtype,
        cache_type,
        q.dtype,
    )
    where = (batch.positions, batch.cu_seqlens, batch.slot_ids, batch.block_tables)
    launch(
        (q.shape[0], triton.cdiv(heads, WINDOW_HEADS)),
        q,
        picks,
        *where,
        ring,
        cache,
        sinks,
        out,
        batch.segments,
        q.stride(0),
        0 if picks is None else picks.stride(0),
        batch.block_tables.stride(0),
        scale,
    )


@cache
def _launch(
    heads: int,
    head_dim: int,
    window: int,
    ratio: int,
    top_k: int,
    ring: int,
    ring_dtype: torch.dtype,
    cache_type: str,
    dtype: torch.dtype,
) -> Launch:
    block = triton.next_power_of_2(head_dim)
    pieces = wave_pieces(head_dim)
    return Launch(
        _attend,
        warps=pieces,
        RING=ring,
        WINDOW=window,
        RATIO=ratio,
        TOP_K=top_k,
        HEADS=heads,
        D=head_dim,
        BD=block // pieces,
        PIECES=pieces,
        M=WINDOW_HEADS,
        KEYS=wave_keys(head_dim),
        RING_TYPE=RING_TYPES[ring_dtype],
        CACHE_TYPE=cache_type,
        COMPUTE=TRITON_DTYPES[dtype],
    )
