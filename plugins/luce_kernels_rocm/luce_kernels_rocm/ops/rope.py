"""rope: one program for some heads of a row; cosine and sine of a row serve all of them."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import ROPE_HEADS, ROPE_WARPS
from luce_kernels_rocm.jit.trig import cos_sin
from luce_kernels_rocm.launch import Launch


@triton.jit
def _rope(
    x,
    positions,
    inv_freq,
    out,
    x_stride,
    attention_factor,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BH: tl.constexpr,
    BP: tl.constexpr,
    BREST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BH + tl.arange(0, BH)[:, None]
    pair = tl.arange(0, BP)
    angle = tl.load(positions + row).to(tl.float32) * tl.load(
        inv_freq + pair, mask=pair < PAIRS, other=0.0
    )
    cosine, sine = cos_sin(angle)
    cos = (cosine * attention_factor)[None, :]
    sin = (sine * attention_factor)[None, :]
    if INTERLEAVED:
        first = 2 * pair[None, :]
        second = first + 1
    else:
        first = pair[None, :]
        second = first + PAIRS
    inside = (head < HEADS) & (pair[None, :] < PAIRS)
    source = x + row * x_stride + head * D
    target = out + (row * HEADS + head) * D
    a = tl.load(source + first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source + second, mask=inside, other=0.0).to(tl.float32)
    tl.store(target + first, (a * cos - b * sin).to(out.dtype.element_ty), mask=inside)
    tl.store(target + second, (b * cos + a * sin).to(out.dtype.element_ty), mask=inside)
    if BREST > 0:
        rest = 2 * PAIRS + tl.arange(0, BREST)[None, :]
        kept = (head < HEADS) & (rest < D)
        tl.store(target + rest, tl.load(source + rest, mask=kept), mask=kept)


def rope(
    x: Tensor,  # [T, H, D]
    positions: Tensor,  # [T]
    out: Tensor,  # [T, H, D]
    *,
    inv_freq: Tensor,  # [rotary_dim / 2] float32
    attention_factor: float,
    rotary_dim: int,
    interleaved: bool,
) -> None:
    rows, heads, head_dim = x.shape
    launch = _launch(heads, head_dim, rotary_dim, interleaved)
    grid = (rows, triton.cdiv(heads, ROPE_HEADS))
    launch(grid, x, positions, inv_freq, out, x.stride(0), attention_factor)


@cache
def _launch(heads: int, head_dim: int, rotary_dim: int, interleaved: bool) -> Launch:
    rest = head_dim - rotary_dim
    return Launch(
        _rope,
        warps=ROPE_WARPS,
        HEADS=heads,
        D=head_dim,
        PAIRS=rotary_dim // 2,
        INTERLEAVED=interleaved,
        BH=ROPE_HEADS,
        BP=triton.next_power_of_2(rotary_dim // 2),
        BREST=triton.next_power_of_2(rest) if rest else 0,
    )
