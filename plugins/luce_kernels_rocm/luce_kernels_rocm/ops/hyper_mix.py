"""hyper_mix: products of parts of a row's streams, then one program for each row.

Parts lie at fixed places and are summed in one order. The squares of a row are summed along with
its products, and what all of them are divided by is applied at the end.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import STREAM_PART, STREAM_VALUES, STREAM_WARPS
from luce_kernels_rocm.jit.smooth import sigmoid
from luce_kernels_rocm.launch import Launch


@triton.jit
def _part(
    x,
    fn,
    sums,
    x_stride,
    WIDTH: tl.constexpr,
    MIXES: tl.constexpr,
    PARTS: tl.constexpr,
    BM: tl.constexpr,
    PART: tl.constexpr,
    B: tl.constexpr,
):
    """[MIXES + 1] sums of a part: products with the rows of `fn`, and last the squares."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    m = tl.arange(0, BM)
    products = tl.zeros([BM, B], tl.float32)
    squares = tl.zeros([B], tl.float32)
    for first in range(0, PART, B):
        at = part * PART + first + tl.arange(0, B)
        inside = at < WIDTH
        values = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
        kept = (m < MIXES)[:, None] & inside[None, :]
        factors = tl.load(fn + m[:, None] * WIDTH + at[None, :], mask=kept, other=0.0)
        products += factors * values[None, :]
        squares += values * values
    target = sums + (row * PARTS + part) * (MIXES + 1)
    tl.store(target + m, tl.sum(products, 1), mask=m < MIXES)
    tl.store(target + MIXES, tl.sum(squares, 0))


@triton.jit
def _total(sums, at, inside, PARTS: tl.constexpr, STEP: tl.constexpr):
    total = tl.zeros(at.shape, tl.float32)
    for part in range(PARTS):
        total += tl.load(sums + part * STEP + at, mask=inside, other=0.0)
    return total


@triton.jit
def _coefficients(
    sums,
    base,
    scale,
    out,
    eps,
    hc_eps,
    WIDTH: tl.constexpr,
    STREAMS: tl.constexpr,
    MIXES: tl.constexpr,
    PARTS: tl.constexpr,
    HEAD: tl.constexpr,
    ITERATIONS: tl.constexpr,
    BS: tl.constexpr,
):
    STEP: tl.constexpr = MIXES + 1
    row = tl.program_id(0).to(tl.int64)
    own = sums + row * (PARTS * STEP)
    h = tl.arange(0, BS)
    inside = h < STREAMS
    squares = tl.sum(_total(own, MIXES + h, h < 1, PARTS, STEP), 0)
    factor = tl.rsqrt(squares / WIDTH + eps)
    pre = _total(own, h, inside, PARTS, STEP) * factor * tl.load(scale)
    pre = sigmoid(pre + tl.load(base + h, mask=inside, other=0.0)) + hc_eps
    tl.store(out + row * MIXES + h, pre, mask=inside)
    if HEAD:
        return
    at = STREAMS + h
    post = _total(own, at, inside, PARTS, STEP) * factor * tl.load(scale + 1)
    post = 2.0 * sigmoid(post + tl.load(base + at, mask=inside, other=0.0))
    tl.store(out + row * MIXES + at, post, mask=inside)
    at = 2 * STREAMS + h[:, None] * STREAMS + h[None, :]
    kept = inside[:, None] & inside[None, :]
    matrix = _total(own, at, kept, PARTS, STEP) * factor * tl.load(scale + 2)
    matrix += tl.load(base + at, mask=kept, other=0.0)
    matrix = tl.where(kept, matrix, -float("inf"))
    most = tl.max(matrix, 1, keep_dims=True)
    raised = tl.where(kept, tl.exp(matrix - tl.where(inside[:, None], most, 0.0)), 0.0)
    rows = tl.where(inside[:, None], tl.sum(raised, 1, keep_dims=True), 1.0)
    matrix = tl.where(kept, raised / rows + hc_eps, 0.0)
    matrix = matrix / (tl.sum(matrix, 0, keep_dims=True) + hc_eps)
    for _ in range(ITERATIONS - 1):
        matrix = matrix / (tl.sum(matrix, 1, keep_dims=True) + hc_eps)
        matrix = matrix / (tl.sum(matrix, 0, keep_dims=True) + hc_eps)
    tl.store(out + row * MIXES + at, matrix, mask=kept)


class _Kernels(NamedTuple):
    parts: int
    part: Launch
    coefficients: Launch


def hyper_mix(
    x: Tensor,  # [R, N, D] float32
    fn: Tensor,  # [M, N D] float32
    base: Tensor,  # [M] float32
    scale: Tensor,  # [3] float32, with `head` [1]
    out: Tensor,  # [R, M] float32
    *,
    streams: int,
    head: bool,
    eps: float,
    hc_eps: float,
    iterations: int,
) -> None:
    rows, mixes = out.shape
    kernels = _kernels(streams, x.shape[2], head, iterations)
    sums = torch.empty(rows, kernels.parts, mixes + 1, device=x.device)
    kernels.part((rows, kernels.parts), x, fn, sums, x.stride(0))
    kernels.coefficients((rows,), sums, base, scale, out, eps, hc_eps)


@cache
def _kernels(streams: int, width: int, head: bool, iterations: int) -> _Kernels:
    mixes = streams if head else streams * (2 + streams)
    values = streams * width
    parts = triton.cdiv(values, STREAM_PART)
    facts: dict[str, Any] = {"WIDTH": values, "MIXES": mixes, "PARTS": parts}
    return _Kernels(
        parts,
        Launch(
            _part,
            warps=STREAM_WARPS,
            BM=triton.next_power_of_2(mixes),
            PART=STREAM_PART,
            B=STREAM_VALUES,
            **facts,
        ),
        Launch(
            _coefficients,
            warps=1,
            STREAMS=streams,
            HEAD=head,
            ITERATIONS=iterations,
            BS=triton.next_power_of_2(streams),
            **facts,
        ),
    )
