"""index_topk: scores of all entries that a row sees, then one program for each row.

The least score that is picked is found bit by bit, from the top: a score's bits as an ordered whole
number, and how many scores reach a candidate. What lies above it is picked, and of its equals the
first as far as there is room. Rows that see no more entries than they may pick are not scored.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.configs import INDEX_ENTRIES, INDEX_PIECE, INDEX_SCORES, INDEX_WARPS
from luce_kernels_rocm.jit.cache_rows import cache_tile
from luce_kernels_rocm.jit.dtypes import TRITON_DTYPES
from luce_kernels_rocm.jit.segments import segment_of
from luce_kernels_rocm.launch import Launch


@triton.jit
def _scores(
    q,
    weights,
    positions,
    cu_seqlens,
    block_tables,
    cache,
    scores,
    first_row,
    segments,
    entries,
    q_stride,
    weights_stride,
    table_stride,
    HEADS: tl.constexpr,
    BH: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    RATIO: tl.constexpr,
    TOP_K: tl.constexpr,
    TYPE: tl.constexpr,
    KEYS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    PER_BLOCK: tl.constexpr = 128 // RATIO
    row = first_row + tl.program_id(0)
    count = (tl.load(positions + row) + 1) // RATIO
    first = tl.program_id(1) * KEYS
    if (count <= TOP_K) | (first >= count):
        return
    entry = first + tl.arange(0, KEYS)
    inside = entry < count
    table = block_tables + segment_of(cu_seqlens, segments, row) * table_stride
    block = tl.load(table + entry // PER_BLOCK, mask=inside, other=0).to(tl.int64)
    place = block * PER_BLOCK + entry % PER_BLOCK
    keys = cache_tile(cache, place, inside, 0, TYPE, D, BD, COMPUTE)
    head = tl.arange(0, BH)
    d = tl.arange(0, BD)
    source = q + row.to(tl.int64) * q_stride + head[:, None] * D + d[None, :]
    kept = (head < HEADS)[:, None] & (d < D)[None, :]
    queries = tl.load(source, mask=kept, other=0.0).to(COMPUTE)
    dots = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    own = weights + row.to(tl.int64) * weights_stride + head
    weight = tl.load(own, mask=head < HEADS, other=0.0).to(tl.float32)
    result = tl.sum(tl.maximum(dots, 0.0) * weight[:, None], 0)
    target = scores + tl.program_id(0).to(tl.int64) * entries + entry
    tl.store(target, result, mask=inside)


@triton.jit
def _ordered(scores, at, inside):
    """Whole numbers from 1 in the scores' order, int64; 0 where there is none. Both zeros are
    equal, and a NaN comes before all."""
    score = tl.load(scores + at, mask=inside, other=0.0)
    score = tl.where(score == 0.0, 0.0, tl.where(score != score, float("inf"), score))
    bits = score.to(tl.int32, bitcast=True).to(tl.int64)
    ordered = tl.where(bits < 0, -2147483648 - bits, bits) + 2147483648 + 1
    return tl.where(inside, ordered, 0)


@triton.jit
def _picks(
    positions,
    scores,
    out,
    first_row,
    entries,
    RATIO: tl.constexpr,
    TOP_K: tl.constexpr,
    BK: tl.constexpr,
    B: tl.constexpr,
):
    row = first_row + tl.program_id(0)
    count = (tl.load(positions + row) + 1) // RATIO
    target = out + row.to(tl.int64) * TOP_K
    if count <= TOP_K:
        number = tl.arange(0, BK)
        picks = tl.where(number < count, number, 0).to(tl.float32)
        tl.store(target + number, picks, mask=number < TOP_K)
        return
    own = scores + tl.program_id(0).to(tl.int64) * entries
    least = tl.full([], 0, tl.int64)
    for step in range(33):
        candidate = least + (tl.full([], 1, tl.int64) << (32 - step))
        reached = tl.full([], 0, tl.int32)
        for first in range(0, count, B):
            at = first + tl.arange(0, B)
            reached += tl.sum((_ordered(own, at, at < count) >= candidate).to(tl.int32), 0)
        least = tl.where(reached >= TOP_K, candidate, least)
    above = tl.full([], 0, tl.int32)
    for first in range(0, count, B):
        at = first + tl.arange(0, B)
        above += tl.sum((_ordered(own, at, at < count) > least).to(tl.int32), 0)
    room = TOP_K - above
    picked = tl.full([], 0, tl.int32)
    equals = tl.full([], 0, tl.int32)
    for first in range(0, count, B):
        at = first + tl.arange(0, B)
        ordered = _ordered(own, at, at < count)
        is_equal = ((ordered == least) & (at < count)).to(tl.int32)
        is_picked = (ordered > least) | (
            (is_equal != 0) & (equals + tl.cumsum(is_equal, 0) <= room)
        )
        chosen = is_picked.to(tl.int32)
        place = picked + tl.cumsum(chosen, 0) - 1
        tl.store(target + place, at.to(tl.float32), mask=is_picked)
        picked += tl.sum(chosen, 0)
        equals += tl.sum(is_equal, 0)


class _Kernels(NamedTuple):
    scores: Launch
    picks: Launch


def index_topk(
    q: Tensor,  # [T, heads, D]
    weights: Tensor,  # [T, heads]
    batch: PackedBatch,
    cache: Tensor,  # [blocks + 1, 128 / ratio, row]
    out: Tensor,  # [T, top_k] float32
    *,
    heads: int,
    head_dim: int,
    ratio: int,
    top_k: int,
    cache_type: str,
) -> None:
    kernels = _kernels(heads, head_dim, ratio, top_k, cache_type, q.dtype)
    rows, entries = q.shape[0], max(1, batch.max_context // ratio)
    # As many rows at once as their scores have room.
    most = max(1, min(rows, INDEX_SCORES // entries))
    scores = torch.empty(most, entries, device=q.device)
    where = (batch.positions, batch.cu_seqlens, batch.block_tables)
    steps = (q.stride(0), weights.stride(0), batch.block_tables.stride(0))
    for first in range(0, rows, most):
        count = min(most, rows - first)
        if entries > top_k:
            grid = (count, triton.cdiv(entries, INDEX_ENTRIES))
            own = (first, batch.segments, entries)
            kernels.scores(grid, q, weights, *where, cache, scores, *own, *steps)
        kernels.picks((count,), batch.positions, scores, out, first, entries)


@cache
def _kernels(
    heads: int, head_dim: int, ratio: int, top_k: int, cache_type: str, dtype: torch.dtype
) -> _Kernels:
    return _Kernels(
        Launch(
            _scores,
            warps=INDEX_WARPS,
            HEADS=heads,
            BH=max(16, triton.next_power_of_2(heads)),
            D=head_dim,
            BD=triton.next_power_of_2(head_dim),
            RATIO=ratio,
            TOP_K=top_k,
            TYPE=cache_type,
            KEYS=INDEX_ENTRIES,
            COMPUTE=TRITON_DTYPES[dtype],
        ),
        Launch(
            _picks,
            warps=INDEX_WARPS,
            RATIO=ratio,
            TOP_K=top_k,
            BK=triton.next_power_of_2(top_k),
            B=INDEX_PIECE,
        ),
    )
