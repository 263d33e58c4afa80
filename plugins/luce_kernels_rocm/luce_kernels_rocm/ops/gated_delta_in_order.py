"""gated_delta in token order throughout: one program for some columns of a head's state, which stay
in registers while it goes through the rows of a segment.

Columns do not mix: column j of the state meets value j of each row, and key and query as a whole.
"""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.configs import DELTA_CHUNK, STATE_COLUMNS, STATE_WARPS
from luce_kernels_rocm.jit.delta_rule import changed, chunk_cut, state_tile
from luce_kernels_rocm.jit.smooth import sigmoid, softplus
from luce_kernels_rocm.launch import Launch


@triton.jit
def _unit(source, inside, eps):
    values = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    return values * tl.rsqrt(tl.sum(values * values, 0) + eps)


# Which rows of prompts a launch goes through: all, those before the first whole chunk (all if there
# is none), or those behind the last.
WHOLE, BEFORE, BEHIND = 0, 1, 2


# One binary whatever the step is like: who else is in it must not change how a row is rounded.
@triton.jit(do_not_specialize=["num_prefill", "rows_of_prompts"])
def _gated_delta(
    qkv,
    alpha,
    beta,
    positions,
    cu_seqlens,
    slot_ids,
    delta_state,
    key_log,
    delta_log,
    decay_log,
    ssm_a,
    dt_bias,
    out,
    num_prefill,
    rows_of_prompts,
    qkv_stride,
    alpha_stride,
    beta_stride,
    log_rows,
    q_scale,
    eps,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    CHUNK: tl.constexpr,
):
    head = tl.program_id(0)
    column = tl.program_id(1) * BV + tl.arange(0, BV)
    segment = tl.program_id(2)
    first = tl.load(cu_seqlens + segment)
    stop = tl.load(cu_seqlens + segment + 1)
    before, chunks = chunk_cut(tl.load(positions + first), stop - first, CHUNK)
    is_cut = (segment < num_prefill) & (chunks > 0)
    behind = tl.where(is_cut, first + before + chunks * CHUNK, stop)
    stop = tl.where(is_cut & (rows_of_prompts == 1), first + before, stop)
    first = tl.where(rows_of_prompts == 2, behind, first)
    if first >= stop:
        return
    slot = tl.load(slot_ids + segment).to(tl.int64)
    is_verify = (segment >= num_prefill) & (stop - first > 1)
    key_head = head % KEY_HEADS
    # Of all programs with this key and decay one logs them.
    is_first = is_verify & (tl.program_id(1) == 0)
    keeps_key = is_first & (head < KEY_HEADS)
    k_at = tl.arange(0, BK)
    k_inside = k_at < D_K
    v_inside = column < D_V
    place, inside = state_tile(column, D_K, D_V, BK)
    place += (slot * HEADS + head) * (D_K * D_V)
    state = tl.load(delta_state + place, mask=inside, other=0.0)
    rate_a = tl.load(ssm_a + head)
    bias = tl.load(dt_bias + head)
    for number in range(stop - first):
        row = (first + number).to(tl.int64)
        source = qkv + row * qkv_stride
        q_at = source + key_head * D_K + k_at
        query = _unit(q_at, k_inside, eps) * q_scale
        key = _unit(q_at + KEY_HEADS * D_K, k_inside, eps)
        value_at = source + 2 * KEY_HEADS * D_K + head * D_V + column
        value = tl.load(value_at, mask=v_inside, other=0.0).to(tl.float32)
        rate = sigmoid(tl.load(beta + row * beta_stride + head).to(tl.float32))
        step = tl.load(alpha + row * alpha_stride + head).to(tl.float32) + bias
        decay = tl.exp(rate_a * softplus(step).to(tl.float32))
        decayed = state * decay
        delta = rate * (value - tl.sum(decayed * key[:, None], 0))
        state = changed(decayed, key, delta)
        result = tl.sum(state * query[:, None], 0)
        target = out + (row * HEADS + head) * D_V + column
        tl.store(target, result.to(out.dtype.element_ty), mask=v_inside)
        logged = slot * log_rows + number
        key_at = key_log + (logged * KEY_HEADS + key_head) * D_K + k_at
        tl.store(key_at, key, mask=k_inside & keeps_key)
        delta_at = delta_log + (logged * HEADS + head) * D_V + column
        tl.store(delta_at, delta, mask=v_inside & is_verify)
        tl.store(decay_log + logged * HEADS + head, decay, mask=is_first)
    tl.store(delta_state + place, state, mask=inside & (is_verify == 0))


def gated_delta(
    qkv: Tensor,  # [T, n_k D_k | n_k D_k | H D_v]
    alpha: Tensor,  # [T, H]
    beta: Tensor,  # [T, H]
    batch: PackedBatch,
    delta_state: Tensor,  # [slots + 1, H, D_k, D_v] float32
    key_log: Tensor,  # [slots + 1, 1 + max_draft, n_k, D_k] float32: k of unit length
    delta_log: Tensor,  # [slots + 1, 1 + max_draft, H, D_v] float32: d
    decay_log: Tensor,  # [slots + 1, 1 + max_draft, H] float32: exp(g)
    ssm_a: Tensor,  # [H] float32, negative
    dt_bias: Tensor,  # [H] float32
    out: Tensor,  # [T, H D_v]
    *,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    eps: float,
) -> None:
    facts = (key_heads, value_heads, key_dim, value_dim)
    rows = (
        qkv,
        alpha,
        beta,
        batch,
        delta_state,
        key_log,
        delta_log,
        decay_log,
        ssm_a,
        dt_bias,
        out,
    )
    go_through(WHOLE, batch.segments, *rows, facts=facts, eps=eps)


def go_through(
    rows_of_prompts: int,
    segments: int,
    qkv: Tensor,
    alpha: Tensor,
    beta: Tensor,
    batch: PackedBatch,
    delta_state: Tensor,
    key_log: Tensor,
    delta_log: Tensor,
    decay_log: Tensor,
    ssm_a: Tensor,
    dt_bias: Tensor,
    out: Tensor,
    *,
    facts: tuple[int, int, int, int],
    eps: float,
) -> None:
    """Some rows of prompts, and all of other segments, of the first `segments`; `facts` are key and
    value heads, key and value dimension."""
    parts, launch = _launch(*facts)
    launch(
        (facts[1], parts, segments),
        qkv,
        alpha,
        beta,
        batch.positions,
        batch.cu_seqlens,
        batch.slot_ids,
        delta_state,
        key_log,
        delta_log,
        decay_log,
        ssm_a,
        dt_bias,
        out,
        batch.num_prefill,
        rows_of_prompts,
        qkv.stride(0),
        alpha.stride(0),
        beta.stride(0),
        decay_log.shape[1],
        facts[2] ** -0.5,
        eps,
    )


@cache
def _launch(key_heads: int, value_heads: int, key_dim: int, value_dim: int) -> tuple[int, Launch]:
    launch = Launch(
        _gated_delta,
        warps=STATE_WARPS,
        KEY_HEADS=key_heads,
        HEADS=value_heads,
        D_K=key_dim,
        D_V=value_dim,
        BK=triton.next_power_of_2(key_dim),
        BV=STATE_COLUMNS,
        CHUNK=DELTA_CHUNK,
    )
    return triton.cdiv(value_dim, STATE_COLUMNS), launch
