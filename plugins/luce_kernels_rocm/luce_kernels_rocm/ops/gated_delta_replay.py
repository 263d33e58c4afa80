"""gated_delta_replay: one program for some columns of a head's state, logged row after row."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.configs import STATE_COLUMNS, STATE_WARPS
from luce_kernels_rocm.jit.delta_rule import changed, state_tile
from luce_kernels_rocm.launch import Launch


@triton.jit
def _gated_delta_replay(
    cu_seqlens,
    slot_ids,
    accepted,
    key_log,
    delta_log,
    decay_log,
    delta_state,
    num_prefill,
    log_rows,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    head = tl.program_id(0)
    column = tl.program_id(1) * BV + tl.arange(0, BV)
    segment = num_prefill + tl.program_id(2)
    rows = tl.load(cu_seqlens + segment + 1) - tl.load(cu_seqlens + segment)
    if rows == 1:
        return
    slot = tl.load(slot_ids + segment).to(tl.int64)
    count = tl.load(accepted + slot)
    if count == 0:
        return
    k_at = tl.arange(0, BK)
    place, inside = state_tile(column, D_K, D_V, BK)
    place += (slot * HEADS + head) * (D_K * D_V)
    state = tl.load(delta_state + place, mask=inside, other=0.0)
    for row in range(count):
        logged = slot * log_rows + row
        key_at = key_log + (logged * KEY_HEADS + head % KEY_HEADS) * D_K + k_at
        key = tl.load(key_at, mask=k_at < D_K, other=0.0)
        delta_at = delta_log + (logged * HEADS + head) * D_V + column
        delta = tl.load(delta_at, mask=column < D_V, other=0.0)
        state = changed(state * tl.load(decay_log + logged * HEADS + head), key, delta)
    tl.store(delta_state + place, state, mask=inside)


def gated_delta_replay(
    batch: PackedBatch,
    accepted: Tensor,  # [slots + 1] int32: rows that became durable, the anchor included
    key_log: Tensor,  # [slots + 1, 1 + max_draft, n_k, D_k] float32
    delta_log: Tensor,  # [slots + 1, 1 + max_draft, H, D_v] float32
    decay_log: Tensor,  # [slots + 1, 1 + max_draft, H] float32
    delta_state: Tensor,  # [slots + 1, H, D_k, D_v] float32
    *,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
) -> None:
    parts, launch = _launch(key_heads, value_heads, key_dim, value_dim)
    where = (batch.cu_seqlens, batch.slot_ids, accepted)
    caches = (key_log, delta_log, decay_log, delta_state)
    grid = (value_heads, parts, batch.segments - batch.num_prefill)
    launch(grid, *where, *caches, batch.num_prefill, decay_log.shape[1])


@cache
def _launch(key_heads: int, value_heads: int, key_dim: int, value_dim: int) -> tuple[int, Launch]:
    launch = Launch(
        _gated_delta_replay,
        warps=STATE_WARPS,
        KEY_HEADS=key_heads,
        HEADS=value_heads,
        D_K=key_dim,
        D_V=value_dim,
        BK=triton.next_power_of_2(key_dim),
        BV=STATE_COLUMNS,
    )
    return triton.cdiv(value_dim, STATE_COLUMNS), launch
