"""tail_rope: one program for some heads of a row; cosine and sine of a row serve all of them."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.configs import ROPE_HEADS, ROPE_WARPS
from luce_kernels_rocm.jit.trig import cos_sin
from luce_kernels_rocm.launch import Launch


@triton.jit
def _tail_rope(
    x,
    positions,
    inv_freq,
    out,
    x_stride,
    attention_factor,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    PAIRS: tl.constexpr,
    BH: tl.constexpr,
    BP: tl.constexpr,
    BREST: tl.constexpr,
):
    REST: tl.constexpr = D - 2 * PAIRS
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BH + tl.arange(0, BH)[:, None]
    pair = tl.arange(0, BP)
    position = tl.load(positions + row).to(tl.float32)
    frequency = tl.load(inv_freq + pair, mask=pair < PAIRS, other=0.0)
    cosine, sine = cos_sin(position * frequency)
    cos = (cosine * attention_factor)[None, :]
    sin = (sine * attention_factor)[None, :]
    source = x + row * x_stride + head * D
    target = out + (row * HEADS + head) * D
    first = REST + 2 * pair[None, :]
    inside = (head < HEADS) & (pair[None, :] < PAIRS)
    a = tl.load(source + first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source + first + 1, mask=inside, other=0.0).to(tl.float32)
    tl.store(target + first, (a * cos - b * sin).to(out.dtype.element_ty), mask=inside)
    tl.store(target + first + 1, (b * cos + a * sin).to(out.dtype.element_ty), mask=inside)
    if BREST > 0:
        rest = tl.arange(0, BREST)[None, :]
        kept = (head < HEADS) & (rest < REST)
        tl.store(target + rest, tl.load(source + rest, mask=kept), mask=kept)


def tail_rope(
    x: Tensor,  # [T, H, D]
    batch: PackedBatch,
    out: Tensor,  # [T, H, D]
    *,
    inv_freq: Tensor,  # [rotary_dim / 2] float32
    attention_factor: float,
    head_dim: int,
    rotary_dim: int,
) -> None:
    rows, heads, _ = x.shape
    grid = (rows, triton.cdiv(heads, ROPE_HEADS))
    launch = _launch(heads, head_dim, rotary_dim)
    launch(grid, x, batch.positions, inv_freq, out, x.stride(0), attention_factor)


@cache
def _launch(heads: int, head_dim: int, rotary_dim: int) -> Launch:
    rest = head_dim - rotary_dim
    return Launch(
        _tail_rope,
        warps=ROPE_WARPS,
        HEADS=heads,
        D=head_dim,
        PAIRS=rotary_dim // 2,
        BH=ROPE_HEADS,
        BP=triton.next_power_of_2(rotary_dim // 2),
        BREST=triton.next_power_of_2(rest) if rest else 0,
    )
