"""conv_replay: one program for some channels of a segment. A channel belongs to one lane, and what
moves up comes from behind: the state slides in place."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.configs import CONV_CHANNELS, CONV_WARPS
from luce_kernels_rocm.launch import Launch


@triton.jit
def _conv_replay(
    cu_seqlens,
    slot_ids,
    accepted,
    conv_log,
    conv_state,
    num_prefill,
    log_stride,
    C: tl.constexpr,
    PAST: tl.constexpr,
    B: tl.constexpr,
):
    segment = num_prefill + tl.program_id(0)
    rows = tl.load(cu_seqlens + segment + 1) - tl.load(cu_seqlens + segment)
    if rows == 1:
        return
    slot = tl.load(slot_ids + segment).to(tl.int64)
    count = tl.load(accepted + slot)
    at = tl.program_id(1) * B + tl.arange(0, B)
    inside = at < C
    state = conv_state + slot * (PAST * C) + at
    log = conv_log + slot * log_stride + at
    for place in tl.static_range(PAST):
        number = count + place
        old = tl.load(state + number * C, mask=inside & (number < PAST), other=0.0)
        new = tl.load(log + (number - PAST) * C, mask=inside & (number >= PAST), other=0.0)
        tl.store(state + place * C, tl.where(number < PAST, old, new), mask=inside)


def conv_replay(
    batch: PackedBatch,
    accepted: Tensor,  # [slots + 1] int32: rows that became durable, the anchor included
    conv_log: Tensor,  # [slots + 1, 1 + max_draft, C] float32
    conv_state: Tensor,  # [slots + 1, K - 1, C] float32
    *,
    channels: int,
    kernel: int,
) -> None:
    grid = (batch.segments - batch.num_prefill, triton.cdiv(channels, CONV_CHANNELS))
    where = (batch.cu_seqlens, batch.slot_ids, accepted, conv_log, conv_state)
    _launch(channels, kernel - 1)(grid, *where, batch.num_prefill, conv_log.stride(0))


@cache
def _launch(channels: int, past: int) -> Launch:
    return Launch(_conv_replay, warps=CONV_WARPS, C=channels, PAST=past, B=CONV_CHANNELS)
