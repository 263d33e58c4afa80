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
from luce_kernels_rocm.arch import Arch, arch_of
from luce_kernels_rocm.configs import RING_KEYS, WINDOW_HEADS, ring_config
from luce_kernels_rocm.jit.dtypes import TRITON_DTYPES
from luce_kernels_rocm.jit.online_softmax import entries_taken_in
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
    d = tl.arange(0, BD)
    queries = q + row.to(tl.int64) * q_stride + head * D
    taken = None
    if PIECES == 1:
        kept = inside[:, None] & (d < D)[None, :]
        taken = tl.load(queries[:, None] + d[None, :], mask=kept, other=0.0).to(COMPUTE)
    best = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    sums = (tl.zeros([M, BD], tl.float32),) * PIECES
    oldest = tl.maximum(0, position - WINDOW + 1)
    for start in range(0, position + 1 - oldest, KEYS):
        seen = oldest + start + tl.arange(0, KEYS)
        is_seen = seen <= position
        place = slot * RING + seen % RING
        sums, best, total = entries_taken_in(
            taken,
            queries,
            inside,
            start,
            ring,
            place,
            is_seen,
            scale,
            sums,
            best,
            total,
            RING_TYPE,
            D,
            BD,
            COMPUTE,
        )
    if RATIO > 0:
        PER_BLOCK: tl.constexpr = 128 // RATIO
        table = block_tables + segment * table_stride
        count = (position + 1) // RATIO
        if picks is not None:
            count = tl.minimum(count, TOP_K)
        for start in range(0, count, KEYS):
            number = start + tl.arange(0, KEYS)
            is_seen = number < count
            entry = number
            if picks is not None:
                chosen = picks + row.to(tl.int64) * picks_stride + number
                entry = tl.load(chosen, mask=is_seen, other=0.0).to(tl.int32)
            block = tl.load(table + entry // PER_BLOCK, mask=is_seen, other=0).to(tl.int64)
            place = block * PER_BLOCK + entry % PER_BLOCK
            sums, best, total = entries_taken_in(
                taken,
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
                CACHE_TYPE,
                D,
                BD,
                COMPUTE,
            )
    shrunk, total = with_sink(best, total, sinks, head, inside)
    factor = (shrunk / tl.where(total == 0.0, 1.0, total))[:, None]
    target = out + (row.to(tl.int64) * HEADS + head)[:, None] * D
    for piece in tl.static_range(PIECES):
        at = (piece * BD + d)[None, :]
        result = (sums[piece] * factor).to(out.dtype.element_ty)
        tl.store(target + at, result, mask=inside[:, None] & (at < D))


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
        arch_of(q.device),
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
    arch: Arch,
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
    config = ring_config(arch, block, cache_type)
    return Launch(
        _attend,
        warps=config.warps,
        RING=ring,
        WINDOW=window,
        RATIO=ratio,
        TOP_K=top_k,
        HEADS=heads,
        D=head_dim,
        BD=block // config.pieces,
        PIECES=config.pieces,
        M=WINDOW_HEADS,
        KEYS=RING_KEYS,
        RING_TYPE=RING_TYPES[ring_dtype],
        CACHE_TYPE=cache_type,
        COMPUTE=TRITON_DTYPES[dtype],
    )
