"""greedy_token: the best of each part of a row, then the best of the parts.

Parts have a fixed size, and ties go to the lowest index in both passes. What makes a row offer no
token, a NaN or an infinite best value, is carried as an infinite value.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import VOCAB_PART, VOCAB_PART_WARPS
from luce_kernels_rocm.launch import Launch


@triton.jit
def _part_best(
    logits, values, tokens, stride, N: tl.constexpr, PARTS: tl.constexpr, B: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    at = part * B + tl.arange(0, B)
    scores = tl.load(logits + row * stride + at, mask=at < N, other=-float("inf")).to(tl.float32)
    scores = tl.where(scores != scores, float("inf"), scores)
    best, place = tl.max(scores, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(values + row * PARTS + part, best)
    tl.store(tokens + row * PARTS + part, part * B + place)


@triton.jit
def _row_best(values, tokens, out, PARTS: tl.constexpr, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, B)
    inside = part < PARTS
    bests = tl.load(values + row * PARTS + part, mask=inside, other=-float("inf"))
    best, place = tl.max(bests, 0, return_indices=True, return_indices_tie_break_left=True)
    token = tl.load(tokens + row * PARTS + place)
    is_finite = (best > -float("inf")) & (best < float("inf"))
    tl.store(out + row, tl.where(is_finite, token, -1))


def greedy_token(
    logits: Tensor,  # [R, V]
    out: Tensor,  # [R] int32
) -> None:
    rows, vocab = logits.shape
    parts, part_best, row_best = _launches(vocab)
    values = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    part_best((rows, parts), logits, values, tokens, logits.stride(0))
    row_best((rows,), values, tokens, out)


@cache
def _launches(vocab: int) -> tuple[int, Launch, Launch]:
    parts = triton.cdiv(vocab, VOCAB_PART)
    block = triton.next_power_of_2(parts)
    return (
        parts,
        Launch(_part_best, warps=VOCAB_PART_WARPS, N=vocab, PARTS=parts, B=VOCAB_PART),
        Launch(_row_best, warps=1, PARTS=parts, B=block),
    )
