"""candidate_select: everything that does not depend on the walk first, for all rows at once.

The best tokens of each part of a row, then of the row; the codebooks' rows of these tokens; scores
for each pair of a token that the row before offers with one that the row offers. What is left to go
through in order is a small table a row.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.configs import PAIR_VALUES, PAIR_WARPS, VOCAB_PART, VOCAB_PART_WARPS
from luce_kernels_rocm.jit.first_best import first_best
from luce_kernels_rocm.jit.noise import gumbel, noise_bits
from luce_kernels_rocm.jit.ranks import rank_of
from luce_kernels_rocm.jit.segments import segment_of
from luce_kernels_rocm.launch import Launch
from luce_kernels_rocm.ops.embedding_rows import embedding_rows

# A place is a rank above 31 bits that descend with the token: of equals the lowest token is best.
_LAST_TOKEN = tl.constexpr((1 << 31) - 1)
# The least tile of products.
LEAST_TILE = 16


@triton.jit
def _part_places(
    logits,
    places,
    nan_counts,
    stride,
    N: tl.constexpr,
    PARTS: tl.constexpr,
    TOP_K: tl.constexpr,
    B: tl.constexpr,
):
    """The TOP_K best places of a part, falling; -1 where there are no more. A NaN has none."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    at = part * B + tl.arange(0, B)
    inside = at < N
    value = tl.load(logits + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    is_nan = inside & (value != value)
    ranked = (rank_of(value) << 31) | (at ^ _LAST_TOKEN).to(tl.int64)
    ranked = tl.where(inside & (is_nan == 0), ranked, -1)
    target = places + (row * PARTS + part) * TOP_K
    for number in range(TOP_K):
        best = tl.max(ranked, 0)
        tl.store(target + number, best)
        ranked = tl.where(ranked == best, -1, ranked)
    tl.store(nan_counts + row * PARTS + part, tl.sum(is_nan.to(tl.int32), 0))


@triton.jit
def _row_offers(
    places,
    nan_counts,
    offers,
    counts,
    PARTS: tl.constexpr,
    BP: tl.constexpr,
    TOP_K: tl.constexpr,
    BK: tl.constexpr,
    B: tl.constexpr,
):
    """The tokens that a row offers, best first, and how many they are; token 0 behind the last.

    A NaN takes a place among the best, which equals of the last one may have."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, B)
    own = places + row * (PARTS * TOP_K)
    ranked = tl.load(own + at, mask=at < PARTS * TOP_K, other=-1)
    number = tl.arange(0, BK)
    best = tl.full([BK], -1, tl.int64)
    for step in range(TOP_K):
        found = tl.max(ranked, 0)
        best = tl.where(number == step, found, best)
        ranked = tl.where(ranked == found, -1, ranked)
    part = tl.arange(0, BP)
    strange = tl.load(nan_counts + row * PARTS + part, mask=part < PARTS, other=0)
    last = TOP_K - 1 - tl.sum(strange, 0)
    least = tl.sum(tl.where(number == last, best, 0), 0)
    is_offered = (best >= 0) & ((best >> 31) >= (least >> 31)) & (last >= 0)
    tokens = tl.where(is_offered, (best & _LAST_TOKEN) ^ _LAST_TOKEN, 0).to(tl.int32)
    tl.store(offers + row * TOP_K + number, tokens, mask=number < TOP_K)
    count = tl.sum((is_offered & (number < TOP_K)).to(tl.int32), 0)
    tl.store(counts + row, tl.maximum(count, 1))


@triton.jit
def _anchors(token_ids, cu_seqlens, out):
    segment = tl.program_id(0)
    tl.store(out + segment, tl.load(token_ids + tl.load(cu_seqlens + segment)))


@triton.jit
def _pairs(
    logits,
    g,
    cu_logits,
    offers,
    before,
    after,
    scores,
    rows,
    segments,
    stride,
    g_stride,
    TOP_K: tl.constexpr,
    BK: tl.constexpr,
    RANK: tl.constexpr,
    B: tl.constexpr,
):
    """scores[row, i, j] of token j of the row behind token i of the row before, or behind the
    block's anchor. `before` has what may stand before a row: the offers of all rows, then the
    anchors."""
    row = tl.program_id(0)
    segment = segment_of(cu_logits, segments, row)
    is_first = row == tl.load(cu_logits + segment)
    number = tl.arange(0, BK)
    inside = number < TOP_K
    earlier = tl.where(is_first, rows * TOP_K + segment, (row - 1) * TOP_K + number)
    earlier = before + earlier.to(tl.int64) * RANK
    own = after + (row.to(tl.int64) * TOP_K + number) * RANK
    total = tl.zeros([BK, BK], tl.float32)
    for first in range(0, RANK, B):
        at = first + tl.arange(0, B)
        taken = inside[:, None] & (at < RANK)[None, :]
        hidden = tl.load(g + row.to(tl.int64) * g_stride + at, mask=at < RANK, other=0.0)
        wanted = tl.load(earlier[:, None] + at[None, :], mask=taken, other=0.0)
        wanted = wanted * hidden.to(tl.float32)[None, :]
        met = tl.load(own[:, None] + at[None, :], mask=taken, other=0.0)
        total = tl.dot(wanted, tl.trans(met), total, input_precision="ieee")
    token = tl.load(offers + row.to(tl.int64) * TOP_K + number, mask=inside, other=0)
    unary = tl.load(logits + row.to(tl.int64) * stride + token, mask=inside, other=0.0)
    total += unary.to(tl.float32)[None, :]
    target = scores + row.to(tl.int64) * (TOP_K * TOP_K)
    place = target + number[:, None] * TOP_K + number[None, :]
    tl.store(place, total, mask=inside[:, None] & inside[None, :])


@triton.jit
def _walk(
    scores,
    offers,
    counts,
    cu_logits,
    slot_ids,
    temperatures,
    noise_keys,
    out,
    keys_stride,
    TOP_K: tl.constexpr,
    BK: tl.constexpr,
):
    segment = tl.program_id(0)
    first = tl.load(cu_logits + segment)
    stop = tl.load(cu_logits + segment + 1)
    slot = tl.load(slot_ids + segment).to(tl.int64)
    temperature = tl.load(temperatures + slot)
    number = tl.arange(0, BK)
    chosen = tl.full([], 0, tl.int32)
    for row in range(first, stop):
        wide = tl.full([], 0, tl.int64) + row
        inside = number < tl.load(counts + row)
        own = scores + (wide * TOP_K + chosen) * TOP_K + number
        score = tl.load(own, mask=inside, other=0.0)
        tokens = tl.load(offers + wide * TOP_K + number, mask=inside, other=0)
        largest, token = first_best(score, tokens, inside)
        if temperature > 0.0:
            if (largest > -float("inf")) & (largest < float("inf")):
                key = tl.load(noise_keys + slot * keys_stride + row - first)
                score = tl.div_rn(score - largest, temperature) + gumbel(noise_bits(key, tokens))
                _, token = first_best(score, tokens, inside)
            elif largest != largest:
                # As torch has it: all scores are NaN.
                token = tl.min(tl.where(inside, tokens, _LAST_TOKEN), 0)
        tl.store(out + row, token)
        chosen = tl.min(tl.where(inside & (tokens == token), number, BK), 0)


class _Kernels(NamedTuple):
    parts: int
    part_places: Launch
    row_offers: Launch
    anchors: Launch
    pairs: Launch
    walk: Launch


def candidate_select(
    logits: Tensor,  # [L, V]
    g: Tensor,  # [L, rank]
    batch: PackedBatch,
    temperatures: Tensor,  # [slots + 1] float32
    noise_keys: Tensor,  # [slots + 1, K] int64, one for each row of a block
    predecessors: Tensor,  # [V, row_bytes] uint8
    successors: Tensor,  # [V, row_bytes] uint8
    out: Tensor,  # [L] int32
    *,
    top_k: int,
    rank: int,
    predecessor_type: str,
    successor_type: str,
) -> None:
    rows, vocab = logits.shape
    kernels, device = _kernels(vocab, top_k, rank), logits.device
    places = torch.empty(rows, kernels.parts, top_k, dtype=torch.int64, device=device)
    nan_counts = torch.empty(rows, kernels.parts, dtype=torch.int32, device=device)
    grid = (rows, kernels.parts)
    kernels.part_places(grid, logits, places, nan_counts, logits.stride(0))
    tokens = torch.empty(rows * top_k + batch.segments, dtype=torch.int32, device=device)
    offers, counts = tokens[: rows * top_k], torch.empty(rows, dtype=torch.int32, device=device)
    kernels.row_offers((rows,), places, nan_counts, offers, counts)
    kernels.anchors((batch.segments,), batch.token_ids, batch.cu_seqlens, tokens[rows * top_k :])
    before = torch.empty(tokens.shape[0], rank, device=device)
    after = torch.empty(rows * top_k, rank, device=device)
    facts = {"n": vocab, "k": rank}
    embedding_rows(tokens, predecessors, before, qtype=predecessor_type, **facts)
    embedding_rows(offers, successors, after, qtype=successor_type, **facts)
    scores = torch.empty(rows, top_k, top_k, device=device)
    books = (offers, before, after, scores)
    steps = (rows, batch.segments, logits.stride(0), g.stride(0))
    kernels.pairs((rows,), logits, g, batch.cu_logits, *books, *steps)
    slots = (batch.cu_logits, batch.slot_ids, temperatures, noise_keys)
    kernels.walk((batch.segments,), scores, offers, counts, *slots, out, noise_keys.stride(0))


@cache
def _kernels(vocab: int, top_k: int, rank: int) -> _Kernels:
    parts = triton.cdiv(vocab, VOCAB_PART)
    block = triton.next_power_of_2(top_k)
    return _Kernels(
        parts,
        Launch(
            _part_places,
            warps=VOCAB_PART_WARPS,
            N=vocab,
            PARTS=parts,
            TOP_K=top_k,
            B=VOCAB_PART,
        ),
        Launch(
            _row_offers,
            warps=VOCAB_PART_WARPS,
            PARTS=parts,
            BP=triton.next_power_of_2(parts),
            TOP_K=top_k,
            BK=block,
            B=triton.next_power_of_2(parts * top_k),
        ),
        Launch(_anchors, warps=1),
        Launch(
            _pairs,
            warps=PAIR_WARPS,
            TOP_K=top_k,
            BK=max(LEAST_TILE, block),
            RANK=rank,
            B=PAIR_VALUES,
        ),
        Launch(_walk, warps=1, exact=True, TOP_K=top_k, BK=block),
    )
