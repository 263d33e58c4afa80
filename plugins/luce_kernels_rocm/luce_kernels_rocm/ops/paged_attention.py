"""paged_attention: softmax attention of ragged rows over the paged cache.

Prompts' rows: one program goes through all keys of a tile of rows. Rows of decode segments: the
keys are cut into parts at fixed positions, one program each, and a second kernel merges the parts
of a row in order. Which way a segment goes, and what is summed in which order, depends on nothing
but the segment. Lengths are read on the device: a grid may have more parts and rows than there
are. Rows of null segments, which read nothing, become 0.

A tile of queries is some rows of a segment times the query heads that share a key head.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.arch import Arch, arch_of
from luce_kernels_rocm.configs import (
    ATTENTION_PART,
    MERGED_PARTS,
    AttentionConfig,
    decode_attention_config,
    prefill_attention_config,
)
from luce_kernels_rocm.jit.dtypes import TRITON_DTYPES
from luce_kernels_rocm.jit.softmax_sum import attended, with_sink
from luce_kernels_rocm.launch import Launch

# Elements of a cache that 32 bits cannot count; addresses of smaller ones take half the registers.
HUGE = 1 << 31


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
def _prefill(
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
def _part(
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
    RELOAD: tl.constexpr,
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
    sums, best, total = attended(
        queries,
        inside,
        position,
        block_tables + segment * table_stride,
        head,
        part * PART,
        tl.minimum(part * PART + PART - 1, newest),
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
    place = ((row - first_row).to(tl.int64) * HEADS + heads) * parts + part
    for piece in tl.static_range(PIECES):
        d = (piece * BD + tl.arange(0, BD))[None, :]
        tl.store(part_sums + place[:, None] * D + d, sums[piece], mask=inside[:, None] & (d < D))
    tl.store(part_bests + place, best, mask=inside)
    tl.store(part_totals + place, total, mask=inside)


@triton.jit
def _merge(
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


class _Kernels(NamedTuple):
    """The launches of a layer, and the rows of their tiles."""

    prefill: Launch
    prefill_rows: int
    part: Launch
    part_rows: int
    merge: Launch


def paged_attention(
    q: Tensor,  # [T, heads, D]
    batch: PackedBatch,
    k_cache: Tensor,  # [blocks + 1, block_size, kv_heads, row]
    v_cache: Tensor,  # [blocks + 1, block_size, kv_heads, row]
    out: Tensor,  # [T, heads, D]
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    k_type: str,
    v_type: str,
    scale: float,
    sinks: Tensor | None = None,  # [heads]
) -> None:
    """`sinks` are logits that take part in a head's softmax without a value. Where both caches are
    one, its rows are keys and values at once."""
    kernels = _kernels(
        arch_of(q.device),
        heads,
        kv_heads,
        head_dim,
        block_size,
        k_type,
        v_type,
        k_cache.data_ptr() == v_cache.data_ptr(),
        max(k_cache.numel(), v_cache.numel()) >= HUGE,
        q.dtype,
    )
    steps = (q.stride(0), batch.block_tables.stride(0), k_cache.shape[0] - 1)
    where = (batch.positions, batch.cu_seqlens, batch.context_lens, batch.block_tables)
    if batch.num_prefill:
        grid = (triton.cdiv(batch.max_query, kernels.prefill_rows), batch.num_prefill, kv_heads)
        kernels.prefill(grid, q, *where, k_cache, v_cache, sinks, out, *steps, scale)
    segments = batch.segments - batch.num_prefill
    if segments == 0:
        return
    rows = batch.rows - batch.prefill_rows
    # No decode segment has more rows than remain when every other one has its least.
    longest = min(batch.max_query, rows - segments + 1)
    tiles = triton.cdiv(longest, kernels.part_rows)
    parts = triton.cdiv(batch.max_context, ATTENTION_PART)
    figures = torch.empty(rows * heads * parts * (head_dim + 2), device=q.device)
    sums, bests, totals = figures.split(
        [rows * heads * parts * head_dim, rows * heads * parts, rows * heads * parts]
    )
    kernels.part(
        (segments * tiles, parts, kv_heads),
        q,
        *where,
        k_cache,
        v_cache,
        sums,
        bests,
        totals,
        batch.num_prefill,
        batch.prefill_rows,
        tiles,
        parts,
        *steps,
        scale,
    )
    kernels.merge(
        (rows, heads),
        batch.positions,
        sums,
        bests,
        totals,
        sinks,
        out,
        batch.prefill_rows,
        parts,
    )


@cache
def _kernels(
    arch: Arch,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    k_type: str,
    v_type: str,
    shared: bool,
    is_huge: bool,
    dtype: torch.dtype,
) -> _Kernels:
    group = triton.next_power_of_2(heads // kv_heads)
    block = triton.next_power_of_2(head_dim)
    facts: dict[str, Any] = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "GROUP": heads // kv_heads,
        "BGROUP": group,
        "BLOCK_SIZE": block_size,
        "K_TYPE": k_type,
        "V_TYPE": v_type,
        "SHARED": shared,
        "D": head_dim,
        "INDEX": tl.int64 if is_huge else tl.int32,
        "COMPUTE": TRITON_DTYPES[dtype],
    }

    def launch(kernel: Any, config: AttentionConfig, **more: Any) -> Launch:
        return Launch(
            kernel,
            warps=config.warps,
            ROWS=config.rows,
            KEYS=config.keys,
            PIECES=config.pieces,
            RELOAD=config.reload,
            BD=block // config.pieces,
            **facts,
            **more,
        )

    prefill = prefill_attention_config(arch, group, head_dim, (k_type, v_type))
    part = decode_attention_config(arch, group, head_dim, (k_type, v_type))
    return _Kernels(
        launch(_prefill, prefill),
        prefill.rows,
        launch(_part, part, PART=ATTENTION_PART),
        part.rows,
        Launch(
            _merge,
            warps=1,
            HEADS=heads,
            D=head_dim,
            BD=block,
            PART=ATTENTION_PART,
            AT_ONCE=MERGED_PARTS,
        ),
    )
