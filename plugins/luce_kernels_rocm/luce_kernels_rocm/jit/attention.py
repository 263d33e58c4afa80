"""Kernels of paged attention; `ops/paged_attention.py` says which segment goes which way."""

from __future__ import annotations

import triton
import triton.language as tl

from luce_kernels_rocm.jit.online_softmax import rows_taken_in
from luce_kernels_rocm.jit.softmax_sum import attended, with_sink


@triton.jit
def _queries(
    q,
    positions,
    first,
    stop,
    head,
    q_stride,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    BGROUP: tl.constexpr,
    D: tl.constexpr,
):
    """ROWS rows from `first` on, each with the GROUP heads of a key head: (pointer to the query
    [M], row [M], query head [M], whether it exists [M], position [M])."""
    number = tl.arange(0, ROWS * BGROUP)
    row = first + number // BGROUP
    member = number % BGROUP
    inside = (row < stop) & (member < GROUP)
    heads = head * GROUP + member
    position = tl.load(positions + row, mask=inside, other=-1)
    return q + row.to(tl.int64) * q_stride + heads * D, row, heads, inside, position


@triton.jit
def attend_prefill(
    q,
    positions,
    cu_seqlens,
    context_lens,
    block_tables,
    k_cache,
    v_cache,
    sinks,
    out,
    q_stride,
    table_stride,
    null_block,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BGROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    K_TYPE: tl.constexpr,
    V_TYPE: tl.constexpr,
    SHARED: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    ROWS: tl.constexpr,
    PIECES: tl.constexpr,
    RELOAD: tl.constexpr,
    KEYS: tl.constexpr,
    INDEX: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    segment = tl.program_id(1)
    head = tl.program_id(2)
    start = tl.load(cu_seqlens + segment)
    stop = tl.load(cu_seqlens + segment + 1)
    first = start + tl.program_id(0) * ROWS
    if first >= stop:
        return
    queries, row, heads, inside, position = _queries(
        q, positions, first, stop, head, q_stride, ROWS, GROUP, BGROUP, D
    )
    last = tl.load(context_lens + segment) + tl.minimum(first + ROWS, stop) - 1 - start
    sums, best, total = attended(
        queries,
        inside,
        position,
        block_tables + segment * table_stride,
        head,
        0,
        last,
        null_block,
        k_cache,
        v_cache,
        scale,
        KV_HEADS,
        BLOCK_SIZE,
        K_TYPE,
        V_TYPE,
        SHARED,
        D,
        BD,
        PIECES,
        RELOAD,
        KEYS,
        INDEX,
        COMPUTE,
    )
    kept, total = with_sink(best, total, sinks, heads, inside)
    factor = kept / tl.where(total == 0.0, 1.0, total)
    target = out + (row.to(tl.int64) * HEADS + heads)[:, None] * D
    for piece in tl.static_range(PIECES):
        d = (piece * BD + tl.arange(0, BD))[None, :]
        result = (sums[piece] * factor[:, None]).to(out.dtype.element_ty)
        tl.store(target + d, result, mask=inside[:, None] & (d < D))


@triton.jit
def attend_part(
    q,
    positions,
    cu_seqlens,
    context_lens,
    block_tables,
    k_cache,
    v_cache,
    part_sums,
    part_bests,
    part_totals,
    first_segment,
    first_row,
    tiles,
    parts,
    q_stride,
    table_stride,
    null_block,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BGROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    K_TYPE: tl.constexpr,
    V_TYPE: tl.constexpr,
    SHARED: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    ROWS: tl.constexpr,
    PIECES: tl.constexpr,
    KEYS: tl.constexpr,
    INDEX: tl.constexpr,
    COMPUTE: tl.constexpr,
    PART: tl.constexpr,
):
    segment = first_segment + tl.program_id(0) // tiles
    part = tl.program_id(1)
    head = tl.program_id(2)
    start = tl.load(cu_seqlens + segment)
    stop = tl.load(cu_seqlens + segment + 1)
    first = start + tl.program_id(0) % tiles * ROWS
    if first >= stop:
        return
    newest = tl.load(context_lens + segment) + tl.minimum(first + ROWS, stop) - 1 - start
    if part * PART > newest:
        return
    queries, row, heads, inside, position = _queries(
        q, positions, first, stop, head, q_stride, ROWS, GROUP, BGROUP, D
    )
    M: tl.constexpr = ROWS * BGROUP
    at = (tl.arange(0, PIECES) * BD)[:, None, None] + tl.arange(0, BD)[None, None, :]
    kept = inside[None, :, None] & (at < D)
    taken = tl.load(queries[None, :, None] + at, mask=kept, other=0.0).to(COMPUTE)
    best = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    sums = tl.zeros([PIECES, M, BD], tl.float32)
    last = tl.minimum(part * PART + PART - 1, newest)
    table = block_tables + segment * table_stride
    for start in range(part * PART, last + 1, KEYS):
        read = start + tl.arange(0, PIECES * KEYS) % KEYS
        block = tl.load(table + read // BLOCK_SIZE, mask=read <= last, other=null_block)
        place = (block.to(INDEX) * BLOCK_SIZE + read % BLOCK_SIZE) * KV_HEADS + head
        key = start + tl.arange(0, KEYS)
        known = tl.load(table + key // BLOCK_SIZE, mask=key <= last, other=null_block) != null_block
        sums, best, total = rows_taken_in(
            taken,
            k_cache,
            v_cache,
            place,
            block != null_block,
            known[None, :] & (key[None, :] <= position[:, None]),
            scale,
            sums,
            best,
            total,
            K_TYPE,
            V_TYPE,
            SHARED,
            D,
            COMPUTE,
        )
    result = ((row - first_row).to(tl.int64) * HEADS + heads) * parts + part
    tl.store(part_sums + (result * D)[None, :, None] + at, sums, mask=kept)
    tl.store(part_bests + result, best, mask=inside)
    tl.store(part_totals + result, total, mask=inside)


@triton.jit
def attend_merge(
    positions,
    part_sums,
    part_bests,
    part_totals,
    sinks,
    out,
    first_row,
    parts,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    PART: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """The parts of a row's head that hold keys for it, AT_ONCE together, in order."""
    row = first_row + tl.program_id(0)
    head = tl.program_id(1)
    count = tl.load(positions + row) // PART + 1
    start = (tl.program_id(0).to(tl.int64) * HEADS + head) * parts
    d = tl.arange(0, BD)
    best = tl.full([], -float("inf"), tl.float32)
    for first in range(0, count, AT_ONCE):
        part = first + tl.arange(0, AT_ONCE)
        bests = tl.load(part_bests + start + part, mask=part < count, other=-float("inf"))
        best = tl.maximum(best, tl.max(bests, 0))
    base = tl.where(best == -float("inf"), 0.0, best)
    sums = tl.zeros([BD], tl.float32)
    total = tl.full([], 0.0, tl.float32)
    for first in range(0, count, AT_ONCE):
        part = first + tl.arange(0, AT_ONCE)
        inside = part < count
        bests = tl.load(part_bests + start + part, mask=inside, other=-float("inf"))
        weight = tl.exp2(bests - base)
        totals = tl.load(part_totals + start + part, mask=inside, other=0.0)
        total += tl.sum(totals * weight, 0)
        source = part_sums + (start + part)[:, None] * D + d[None, :]
        values = tl.load(source, mask=inside[:, None] & (d < D)[None, :], other=0.0)
        sums += tl.sum(values * weight[:, None], 0)
    kept, total = with_sink(best, total, sinks, head, True)
    factor = kept / tl.where(total == 0.0, 1.0, total)
    target = out + (row.to(tl.int64) * HEADS + head) * D + d
    tl.store(target, (sums * factor).to(out.dtype.element_ty), mask=d < D)
