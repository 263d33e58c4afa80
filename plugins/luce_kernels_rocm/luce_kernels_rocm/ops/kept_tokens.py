"""kept_tokens: which tokens of a row may be drawn.

One program for a row. The head of a ranking ends at a score that is found by its bits, three at a
time: for each of the seven thresholds within reach, the mass at and above it is summed. Masses are
whole numbers, made of exponentials that torch takes, so the result is the reference's on the same
device, and nothing waits for the host.
"""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import RANKED_AT_ONCE, RANKED_WARPS
from luce_kernels_rocm.jit.ranks import rank_of
from luce_kernels_rocm.launch import Launch


@triton.jit
def _weight(share):
    return (share * 17592186044416.0).to(tl.int64)  # 2^44


@triton.jit
def _candidates(logits, shares, kept, at, N: tl.constexpr):
    """(rank, weight, whether an earlier pass has kept it) of tokens `at`."""
    inside = at < N
    rank = rank_of(tl.load(logits + at, mask=inside, other=-float("inf")).to(tl.float32))
    weight = _weight(tl.load(shares + at, mask=inside, other=0.0))
    is_in = inside & (tl.load(kept + at, mask=inside, other=0) != 0)
    return rank, weight, is_in


@triton.jit
def _keep_head(
    logits,
    shares,
    kept,
    target,
    share,
    N: tl.constexpr,
    BY_MASS: tl.constexpr,
    B: tl.constexpr,
):
    """Keep the best tokens until `target` of them, or the `share` of their mass, is reached; of
    equals the first ones."""
    total = tl.zeros([B], tl.int64)
    for start in range(0, N, B):
        at = start + tl.arange(0, B)
        rank, weight, is_in = _candidates(logits, shares, kept, at, N)
        mass = weight if BY_MASS else tl.full([B], 1, tl.int64)
        total += tl.where(is_in, mass, 0)
    whole = tl.sum(total, 0)
    if BY_MASS:
        target = tl.ceil(share * whole.to(tl.float64)).to(tl.int64)
    target = tl.minimum(tl.maximum(target, 1), whole)

    # The highest rank at and above which lies the target: 33 bits are eleven times three.
    digit = tl.arange(0, 8)
    found = tl.zeros([], tl.int64)
    for step in range(11):
        shift = 30 - 3 * step
        threshold = found + (digit.to(tl.int64) << shift)
        above = tl.zeros([B, 8], tl.int64)
        for start in range(0, N, B):
            at = start + tl.arange(0, B)
            rank, weight, is_in = _candidates(logits, shares, kept, at, N)
            mass = tl.where(is_in, weight if BY_MASS else tl.full([B], 1, tl.int64), 0)
            above += tl.where(rank[:, None] >= threshold[None, :], mass[:, None], 0)
        reaches = tl.sum(above, 0) >= target
        # Digit 0 always does: all that an earlier digit has let through lies above it.
        found += tl.max(tl.where(reaches, digit, 0), 0).to(tl.int64) << shift

    better = tl.zeros([B], tl.int64)
    for start in range(0, N, B):
        at = start + tl.arange(0, B)
        rank, weight, is_in = _candidates(logits, shares, kept, at, N)
        mass = tl.where(is_in, weight if BY_MASS else tl.full([B], 1, tl.int64), 0)
        better += tl.where(rank > found, mass, 0)
    walked = tl.sum(better, 0)
    for start in range(0, N, B):
        at = start + tl.arange(0, B)
        rank, weight, is_in = _candidates(logits, shares, kept, at, N)
        mass = tl.where(is_in, weight if BY_MASS else tl.full([B], 1, tl.int64), 0)
        equal = tl.where(rank == found, mass, 0)
        before = walked + tl.cumsum(equal, 0) - equal
        stays = is_in & ((rank > found) | ((rank == found) & (before < target)))
        tl.store(kept + at, stays.to(tl.int8), mask=at < N)
        walked += tl.sum(equal, 0)


@triton.jit
def _kept_tokens(
    logits,
    scaled,
    shares,
    top_k,
    top_p,
    log_min_p,
    kept,
    logits_stride,
    scaled_stride,
    N: tl.constexpr,
    B: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    least = tl.load(log_min_p + row)
    count = tl.load(top_k + row)
    share = tl.load(top_p + row)
    logits += row * logits_stride
    scaled += row * scaled_stride
    shares += row * N
    kept += row * N
    for start in range(0, N, B):
        at = start + tl.arange(0, B)
        inside = at < N
        score = tl.load(scaled + at, mask=inside, other=-float("inf"))
        weight = _weight(tl.load(shares + at, mask=inside, other=0.0))
        stays = (weight > 0) & (score >= least)
        tl.store(kept + at, stays.to(tl.int8), mask=inside)
    # What other lanes of this program have stored is read next.
    tl.debug_barrier()
    if count < N:
        _keep_head(logits, shares, kept, count, share, N, False, B)
        tl.debug_barrier()
    if share < 1.0:
        _keep_head(logits, shares, kept, count, share, N, True, B)


def kept_tokens(
    logits: Tensor,  # [R, V]
    scaled: Tensor,  # [R, V] float32
    top_k: Tensor,  # [R] int64
    top_p: Tensor,  # [R] float64
    min_p: Tensor,  # [R] float32
    out: Tensor,  # [R, V] int8
) -> None:
    rows, vocab = logits.shape
    launch = _launch(vocab)
    strides = logits.stride(0), scaled.stride(0)
    launch((rows,), logits, scaled, scaled.exp(), top_k, top_p, min_p.log(), out, *strides)


@cache
def _launch(vocab: int) -> Launch:
    block = min(RANKED_AT_ONCE, triton.next_power_of_2(vocab))
    return Launch(_kept_tokens, warps=RANKED_WARPS, N=vocab, B=block)
