"""draft_draw: the best of each part of a row; where a slot draws, the best again with noise; then
the best of the parts.

Noise takes two logarithms in float64, which most GPUs are slow at: only pieces with a token that
could win by it are given any.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.configs import NOISE_AT_ONCE, VOCAB_PART, VOCAB_PART_WARPS
from luce_kernels_rocm.jit.first_best import first_best
from luce_kernels_rocm.jit.noise import gumbel, may_win, noise_bits
from luce_kernels_rocm.jit.segments import segment_of
from luce_kernels_rocm.launch import Launch


@triton.jit
def _part_best(
    logits, values, tokens, stride, N: tl.constexpr, PARTS: tl.constexpr, B: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    at = part * B + tl.arange(0, B)
    inside = at < N
    scores = tl.load(logits + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    best, token = first_best(scores, at, inside)
    tl.store(values + row * PARTS + part, best)
    tl.store(tokens + row * PARTS + part, token)


@triton.jit
def _of_parts(values, tokens, row, PARTS: tl.constexpr, BP: tl.constexpr):
    """(value, token) of a row's best part."""
    part = tl.arange(0, BP)
    inside = part < PARTS
    bests = tl.load(values + row * PARTS + part, mask=inside, other=0.0)
    numbers = tl.load(tokens + row * PARTS + part, mask=inside, other=0)
    return first_best(bests, numbers, inside)


@triton.jit
def _part_drawn(
    logits,
    values,
    tokens,
    cu_logits,
    slot_ids,
    temperatures,
    noise_keys,
    drawn_values,
    drawn_tokens,
    segments,
    stride,
    keys_stride,
    N: tl.constexpr,
    PARTS: tl.constexpr,
    BP: tl.constexpr,
    PART: tl.constexpr,
    B: tl.constexpr,
):
    row = tl.program_id(0)
    segment = segment_of(cu_logits, segments, row)
    slot = tl.load(slot_ids + segment).to(tl.int64)
    temperature = tl.load(temperatures + slot)
    place = row.to(tl.int64) * PARTS + tl.program_id(1)
    best = tl.load(values + place)
    token = tl.load(tokens + place)
    if temperature > 0.0:
        largest, top = _of_parts(values, tokens, row.to(tl.int64), PARTS, BP)
        if (largest > -float("inf")) & (largest < float("inf")):
            key = tl.load(noise_keys + slot * keys_stride + row - tl.load(cu_logits + segment))
            best = gumbel(noise_bits(key, top))
            token = top
            source = logits + row.to(tl.int64) * stride
            for first in range(0, PART, B):
                at = tl.program_id(1) * PART + first + tl.arange(0, B)
                inside = at < N
                value = tl.load(source + at, mask=inside, other=-float("inf")).to(tl.float32)
                score = tl.div_rn(value - largest, temperature)
                bits = noise_bits(key, at)
                hopeful = inside & may_win(score, bits, best)
                if tl.max(hopeful.to(tl.int32), 0) > 0:
                    found, number = first_best(score + gumbel(bits), at, inside)
                    is_better = (found > best) | ((found == best) & (number < token))
                    best = tl.where(is_better, found, best)
                    token = tl.where(is_better, number, token)
        else:
            # As torch has it: without a finite best value all scores, or those of infinite values,
            # are NaN.
            token = tl.where(largest == float("inf"), top, 0)
            best = tl.full([], 0.0, tl.float32)
    tl.store(drawn_values + place, best)
    tl.store(drawn_tokens + place, token)


@triton.jit
def _row_best(values, tokens, out, PARTS: tl.constexpr, BP: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    _, token = _of_parts(values, tokens, row, PARTS, BP)
    tl.store(out + row, token)


class _Kernels(NamedTuple):
    parts: int
    part_best: Launch
    part_drawn: Launch
    row_best: Launch


def draft_draw(
    logits: Tensor,  # [L, V]
    batch: PackedBatch,
    temperatures: Tensor,  # [slots + 1] float32
    noise_keys: Tensor,  # [slots + 1, K] int64, one for each row of a block
    out: Tensor,  # [L] int32
) -> None:
    rows, vocab = logits.shape
    kernels = _kernels(vocab)
    values, drawn = torch.empty(2, rows, kernels.parts, device=logits.device)
    tokens, chosen = torch.empty(2, rows, kernels.parts, dtype=torch.int32, device=logits.device)
    kernels.part_best((rows, kernels.parts), logits, values, tokens, logits.stride(0))
    slots = (batch.cu_logits, batch.slot_ids, temperatures, noise_keys)
    steps = (batch.segments, logits.stride(0), noise_keys.stride(0))
    grid = (rows, kernels.parts)
    kernels.part_drawn(grid, logits, values, tokens, *slots, drawn, chosen, *steps)
    kernels.row_best((rows,), drawn, chosen, out)


@cache
def _kernels(vocab: int) -> _Kernels:
    parts = triton.cdiv(vocab, VOCAB_PART)
    facts = {"PARTS": parts, "BP": triton.next_power_of_2(parts)}
    return _Kernels(
        parts,
        Launch(_part_best, warps=VOCAB_PART_WARPS, N=vocab, PARTS=parts, B=VOCAB_PART),
        Launch(
            _part_drawn,
            warps=VOCAB_PART_WARPS,
            exact=True,
            N=vocab,
            PART=VOCAB_PART,
            B=NOISE_AT_ONCE,
            **facts,
        ),
        Launch(_row_best, warps=1, **facts),
    )
