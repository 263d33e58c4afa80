"""compress_kv: one program for a window of a segment, and for all channels of its entry.

A window's pool is folded from EMPTY, or from the slot's state where rows came before the step:
first the rows of the window before, as far as windows overlap, then its own, each series in token
order. So no program waits for another. The pools that a segment leaves open are written by the
program of its only window, or by a second kernel when all have read the state.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.configs import WINDOW_WARPS
from luce_kernels_rocm.jit.cache_store import store_row
from luce_kernels_rocm.jit.trig import cos_sin
from luce_kernels_rocm.launch import Launch

OWN = tl.constexpr(0)
NEXT = tl.constexpr(1)


@triton.jit
def _pool_at(pool, slot, which, d, SERIES: tl.constexpr, D: tl.constexpr):
    """Where the logits of a slot's pool lie; its sums lie D, its values 2 D values further."""
    return pool + (slot * SERIES + which) * (3 * D) + d


@triton.jit
def _opened(at, inside, D: tl.constexpr):
    """(largest logit, sum, values) of a state's pool; EMPTY where `inside` is false."""
    largest = tl.load(at, mask=inside, other=-float("inf"))
    total = tl.load(at + D, mask=inside, other=0.0)
    return largest, total, tl.load(at + 2 * D, mask=inside, other=0.0)


@triton.jit
def _store_pool(at, inside, D: tl.constexpr, largest, total, mixed):
    tl.store(at, largest, mask=inside)
    tl.store(at + D, total, mask=inside)
    tl.store(at + 2 * D, mixed, mask=inside)


@triton.jit
def _folded(
    values,
    gates,
    ape,
    row,
    count,
    phase,
    at,
    inside,
    values_stride,
    gates_stride,
    WIDTH: tl.constexpr,
    largest,
    total,
    mixed,
):
    """The pool with `count` rows from `row` on folded in, whose first is row `phase` of its window;
    `at` are the channels of a series in a row."""
    for number in range(count):
        far = (row + number).to(tl.int64)
        logit = tl.load(gates + far * gates_stride + at, mask=inside, other=0.0).to(tl.float32)
        logit += tl.load(ape + (phase + number) * WIDTH + at, mask=inside, other=0.0)
        value = tl.load(values + far * values_stride + at, mask=inside, other=0.0).to(tl.float32)
        now = tl.maximum(largest, logit)
        kept = tl.exp(largest - now)
        added = tl.exp(logit - now)
        total = total * kept + added
        mixed = mixed * kept + added * value
        largest = now
    return largest, total, mixed


@triton.jit
def _own_pool(
    values,
    gates,
    ape,
    pool,
    slot,
    first,
    count,
    begin,
    window,
    values_stride,
    gates_stride,
    RATIO: tl.constexpr,
    SERIES: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
):
    """The pool of a window behind the rows of a segment, whose first row is `first` at position
    `begin`."""
    WIDTH: tl.constexpr = SERIES * D
    d = tl.arange(0, BD)
    inside = d < D
    starts_at = window * RATIO - begin  # in rows of the segment; before it if negative
    earlier = starts_at - RATIO  # of the window before
    if SERIES == 2:
        is_open = (starts_at < 0) | ((window > 0) & (earlier < 0))
        which = tl.where(starts_at < 0, OWN, NEXT)
    else:
        is_open = starts_at < 0
        which = OWN
    largest, total, mixed = _opened(_pool_at(pool, slot, which, d, SERIES, D), inside & is_open, D)
    steps = (values_stride, gates_stride, WIDTH)
    if SERIES == 2:
        from_row = tl.maximum(earlier, 0)
        rows = tl.where(window > 0, tl.maximum(starts_at, 0) - from_row, 0)
        where = (first + from_row, rows, from_row - earlier, d, inside)
        largest, total, mixed = _folded(values, gates, ape, *where, *steps, largest, total, mixed)
    from_row = tl.maximum(starts_at, 0)
    rows = tl.minimum(starts_at + RATIO, count) - from_row
    where = (first + from_row, rows, from_row - starts_at, WIDTH - D + d, inside)
    return _folded(values, gates, ape, *where, *steps, largest, total, mixed)


@triton.jit
def _store_state(
    values,
    gates,
    ape,
    pool,
    slot,
    first,
    count,
    begin,
    window,
    values_stride,
    gates_stride,
    RATIO: tl.constexpr,
    SERIES: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    largest,
    total,
    mixed,
):
    """Write what the segment's last window leaves: its own pool, and that of the next one."""
    d = tl.arange(0, BD)
    inside = d < D
    if SERIES == 2:
        starts_at = window * RATIO - begin
        target = _pool_at(pool, slot, NEXT, d, SERIES, D)
        later = _opened(target, inside & (starts_at < 0), D)
        from_row = tl.maximum(starts_at, 0)
        where = (first + from_row, count - from_row, from_row - starts_at, d, inside)
        steps = (values_stride, gates_stride, SERIES * D)
        later = _folded(values, gates, ape, *where, *steps, *later)
        _store_pool(target, inside, D, *later)
    _store_pool(_pool_at(pool, slot, OWN, d, SERIES, D), inside, D, largest, total, mixed)


@triton.jit
def _windows(
    values,
    gates,
    positions,
    cu_seqlens,
    slot_ids,
    kv_rows,
    pool,
    cache,
    ape,
    norm,
    inv_freq,
    values_stride,
    gates_stride,
    eps,
    attention_factor,
    RATIO: tl.constexpr,
    SERIES: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    PAIRS: tl.constexpr,
    TYPE: tl.constexpr,
    ROW: tl.constexpr,
):
    segment = tl.program_id(1)
    first = tl.load(cu_seqlens + segment)
    count = tl.load(cu_seqlens + segment + 1) - first
    begin = tl.load(positions + first)
    window = begin // RATIO + tl.program_id(0)
    if window * RATIO - begin >= count:
        return
    slot = tl.load(slot_ids + segment).to(tl.int64)
    where = (slot, first, count, begin, window, values_stride, gates_stride)
    own = _own_pool(values, gates, ape, pool, *where, RATIO, SERIES, D, BD)
    ends_at = (window + 1) * RATIO - begin
    if ends_at <= count:
        d = tl.arange(0, BD)
        inside = d < D
        pooled = own[2] / own[1]
        factor = tl.load(norm + d, mask=inside, other=0.0)
        mean = tl.sum(pooled * pooled, 0) / D
        even, odd = tl.split(tl.reshape(pooled * tl.rsqrt(mean + eps) * factor, [BD // 2, 2]))
        pair = tl.arange(0, BD // 2) - (D // 2 - PAIRS)
        is_turned = (pair >= 0) & (pair < PAIRS)
        angle = (window * RATIO).to(tl.float32) * tl.load(
            inv_freq + pair, mask=is_turned, other=0.0
        )
        cosine, sine = cos_sin(angle)
        cos = tl.where(is_turned, cosine * attention_factor, 1.0)
        sin = tl.where(is_turned, sine * attention_factor, 0.0)
        turned = tl.join(even * cos - odd * sin, odd * cos + even * sin)
        place = tl.load(kv_rows + first + ends_at - 1).to(tl.int64) // RATIO
        store_row(tl.reshape(turned, [BD]), cache + place * ROW, TYPE, D, BD)
    if begin // RATIO == (begin + count - 1) // RATIO:
        _store_state(values, gates, ape, pool, *where, RATIO, SERIES, D, BD, *own)


@triton.jit
def _states(
    values,
    gates,
    positions,
    cu_seqlens,
    slot_ids,
    pool,
    ape,
    values_stride,
    gates_stride,
    RATIO: tl.constexpr,
    SERIES: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
):
    """The state behind segments of more than one window."""
    segment = tl.program_id(0)
    first = tl.load(cu_seqlens + segment)
    count = tl.load(cu_seqlens + segment + 1) - first
    begin = tl.load(positions + first)
    window = (begin + count - 1) // RATIO
    if begin // RATIO == window:
        return
    slot = tl.load(slot_ids + segment).to(tl.int64)
    where = (slot, first, count, begin, window, values_stride, gates_stride)
    own = _own_pool(values, gates, ape, pool, *where, RATIO, SERIES, D, BD)
    _store_state(values, gates, ape, pool, *where, RATIO, SERIES, D, BD, *own)


class _Kernels(NamedTuple):
    windows: Launch
    states: Launch


def compress_kv(
    values: Tensor,  # [T, P D]
    gates: Tensor,  # [T, P D]
    batch: PackedBatch,
    pool: Tensor,  # [slots + 1, P, 3, D] float32  in place; P = 2 where windows overlap, else 1
    cache: Tensor,  # [blocks + 1, 128 / ratio, row]  in place
    ape: Tensor,  # [ratio, P D] float32
    norm: Tensor,  # [D] float32
    *,
    ratio: int,
    head_dim: int,
    overlap: bool,
    eps: float,
    cache_type: str,
    inv_freq: Tensor,
    attention_factor: float,
    rotary_dim: int,
) -> None:
    kernels = _kernels(ratio, head_dim, overlap, rotary_dim // 2, cache_type, cache.stride(1))
    # A segment that begins at the end of a window has rows of one more.
    windows = (batch.max_query + ratio - 2) // ratio + 1
    where = (batch.positions, batch.cu_seqlens, batch.slot_ids)
    steps = (values.stride(0), gates.stride(0))
    turns = (inv_freq, *steps, eps, attention_factor)
    grid = (windows, batch.segments)
    kernels.windows(grid, values, gates, *where, batch.kv_rows, pool, cache, ape, norm, *turns)
    if windows > 1:
        kernels.states((batch.segments,), values, gates, *where, pool, ape, *steps)


@cache
def _kernels(
    ratio: int, head_dim: int, overlap: bool, pairs: int, cache_type: str, row: int
) -> _Kernels:
    # Exact: both kernels, and rows in any cut, fold to the same bits.
    facts: dict[str, Any] = {
        "warps": WINDOW_WARPS,
        "exact": True,
        "RATIO": ratio,
        "SERIES": 2 if overlap else 1,
        "D": head_dim,
        "BD": triton.next_power_of_2(head_dim),
    }
    return _Kernels(
        Launch(_windows, PAIRS=pairs, TYPE=cache_type, ROW=row, **facts),
        Launch(_states, **facts),
    )
