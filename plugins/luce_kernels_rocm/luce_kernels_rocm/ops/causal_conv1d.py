"""causal_conv1d: one program for some channels of some rows of a segment, row after row.

Inputs that came before the rows are read from the batch, or from the slot's state where they came
before the step. Decode and verify segments have one program for all their rows, which moves the
state on or writes the log; the states of prompts are moved on by a second kernel, when all have
read them. A channel belongs to one lane, so what it reads before it writes is the old state.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.configs import CONV_CHANNELS, CONV_ROWS, CONV_WARPS
from luce_kernels_rocm.jit.smooth import silu
from luce_kernels_rocm.launch import Launch


@triton.jit
def _seen(x, state, first, number, at, inside, x_stride, PAST: tl.constexpr, C: tl.constexpr):
    """Input `number` of a segment whose rows begin at `first`, float32; the last of those before
    the step has number -1."""
    source = x + (first + number).to(tl.int64) * x_stride + at
    fresh = tl.load(source, mask=inside & (number >= 0), other=0.0).to(tl.float32)
    old = tl.load(state + (PAST + number) * C + at, mask=inside & (number < 0), other=0.0)
    return tl.where(number >= 0, fresh, old)


@triton.jit
def _rows(
    x,
    cu_seqlens,
    slot_ids,
    conv_state,
    conv_log,
    weight,
    out,
    num_prefill,
    x_stride,
    log_stride,
    C: tl.constexpr,
    TAPS: tl.constexpr,
    ROWS: tl.constexpr,
    B: tl.constexpr,
):
    PAST: tl.constexpr = TAPS - 1
    segment = tl.program_id(1)
    first = tl.load(cu_seqlens + segment)
    count = tl.load(cu_seqlens + segment + 1) - first
    begin = tl.program_id(0) * ROWS
    if begin >= count:
        return
    slot = tl.load(slot_ids + segment).to(tl.int64)
    at = tl.program_id(2) * B + tl.arange(0, B)
    inside = at < C
    state = conv_state + slot * (PAST * C)
    is_verify = (segment >= num_prefill) & (count > 1)
    none = tl.zeros([B], tl.float32)
    taps = (none,) * TAPS
    past = (none,) * PAST
    for tap in tl.static_range(TAPS):
        taps = taps[1:] + (  # noqa: RUF005
            tl.load(weight + at * TAPS + tap, mask=inside, other=0.0),
        )
        if tap < PAST:
            number = begin + tap - PAST
            past = past[1:] + (  # noqa: RUF005
                _seen(x, state, first, number, at, inside, x_stride, PAST, C),
            )
    for number in range(begin, tl.minimum(begin + ROWS, count)):
        row = (first + number).to(tl.int64)
        fresh = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
        total = past[0] * taps[0]
        for tap in tl.static_range(1, PAST):
            total += past[tap] * taps[tap]
        total += fresh * taps[PAST]
        tl.store(out + row * C + at, silu(total).to(out.dtype.element_ty), mask=inside)
        log = conv_log + slot * log_stride + number * C + at
        tl.store(log, fresh, mask=inside & is_verify)
        past = past[1:] + (fresh,)  # noqa: RUF005
    is_decode = (segment >= num_prefill) & (count == 1)
    for place in tl.static_range(PAST):
        tl.store(state + place * C + at, past[place], mask=inside & is_decode)


@triton.jit
def _prompt_states(
    x,
    cu_seqlens,
    slot_ids,
    conv_state,
    x_stride,
    C: tl.constexpr,
    TAPS: tl.constexpr,
    B: tl.constexpr,
):
    PAST: tl.constexpr = TAPS - 1
    segment = tl.program_id(0)
    first = tl.load(cu_seqlens + segment)
    count = tl.load(cu_seqlens + segment + 1) - first
    at = tl.program_id(1) * B + tl.arange(0, B)
    inside = at < C
    state = conv_state + tl.load(slot_ids + segment).to(tl.int64) * (PAST * C)
    for place in tl.static_range(PAST):
        kept = _seen(x, state, first, count + place - PAST, at, inside, x_stride, PAST, C)
        tl.store(state + place * C + at, kept, mask=inside)


class _Kernels(NamedTuple):
    rows: Launch
    prompt_states: Launch


def causal_conv1d(
    x: Tensor,  # [T, C]
    batch: PackedBatch,
    conv_state: Tensor,  # [slots + 1, K - 1, C] float32: the last inputs, oldest first
    conv_log: Tensor,  # [slots + 1, 1 + max_draft, C] float32
    weight: Tensor,  # [C, K] float32; the last tap meets the row itself
    out: Tensor,  # [T, C]
    *,
    channels: int,
    kernel: int,
) -> None:
    kernels = _kernels(channels, kernel)
    pieces = triton.cdiv(channels, CONV_CHANNELS)
    # Verify segments, which have one program, are no longer than their log.
    grid = (triton.cdiv(batch.max_query, CONV_ROWS), batch.segments, pieces)
    where = (batch.cu_seqlens, batch.slot_ids, conv_state)
    steps = (batch.num_prefill, x.stride(0), conv_log.stride(0))
    kernels.rows(grid, x, *where, conv_log, weight, out, *steps)
    kernels.prompt_states((batch.num_prefill, pieces), x, *where, x.stride(0))


@cache
def _kernels(channels: int, taps: int) -> _Kernels:
    facts: dict[str, Any] = {"C": channels, "TAPS": taps, "B": CONV_CHANNELS}
    return _Kernels(
        Launch(_rows, warps=CONV_WARPS, ROWS=CONV_ROWS, **facts),
        Launch(_prompt_states, warps=CONV_WARPS, **facts),
    )
