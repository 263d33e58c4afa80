"""gated_delta: whole chunks of prompts by products of matrices, all other rows in token order.

The chunk form of the gated delta rule (Yang et al. 2024, "Gated Delta Networks", section 3.3). With
A_t the product of a chunk's decays up to row t and S the state before the chunk, the deltas d of
`luce_qwen_dflash2`'s rule solve

    d_t + sum_{j<t} beta_t (A_t / A_j) (k_t . k_j) d_j = beta_t (v_t - A_t S^T k_t)

and then

    o_t = A_t S^T q_t + sum_{j<=t} (A_t / A_j) (q_t . k_j) d_j
    S  <- A S + sum_j (A / A_j) k_j d_j^T      with A of the last row

What does not depend on S, the inverse of the left side times beta and the factors of d in o, is
made for all chunks at once; then one program for some columns of a head's state goes through the
chunks. Products take the activations' dtype and are summed in float32, as is the state.

Whether a row belongs to a chunk depends on nothing but its segment: chunks begin at positions that
are multiples of their length.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.configs import (
    DELTA_CHUNK,
    DELTA_COLUMNS,
    DELTA_TABLE_WARPS,
    DELTA_WARPS,
)
from luce_kernels_rocm.jit.delta_rule import chunk_cut, state_tile
from luce_kernels_rocm.jit.dtypes import TRITON_DTYPES
from luce_kernels_rocm.jit.smooth import sigmoid, softplus
from luce_kernels_rocm.launch import Launch
from luce_kernels_rocm.ops.gated_delta_in_order import BEFORE, BEHIND, WHOLE, go_through


@triton.jit
def _unit_rows(source, row, stride, scale, eps, D: tl.constexpr, BD: tl.constexpr):
    """[C, BD] float32 rows of unit length times `scale`."""
    d = tl.arange(0, BD)[None, :]
    at = source + row.to(tl.int64)[:, None] * stride + d
    values = tl.load(at, mask=d < D, other=0.0).to(tl.float32)
    return values * (tl.rsqrt(tl.sum(values * values, 1) + eps) * scale)[:, None]


@triton.jit
def _chunk_tables(
    qkv,
    alpha,
    beta,
    positions,
    cu_seqlens,
    ssm_a,
    dt_bias,
    solutions,
    mixes,
    logs,
    qkv_stride,
    alpha_stride,
    beta_stride,
    q_scale,
    eps,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    D_K: tl.constexpr,
    BK: tl.constexpr,
    CHUNK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    segment = tl.program_id(2)
    head = tl.program_id(1)
    start = tl.load(cu_seqlens + segment)
    rows = tl.load(cu_seqlens + segment + 1) - start
    before, chunks = chunk_cut(tl.load(positions + start), rows, CHUNK)
    if tl.program_id(0) >= chunks:
        return
    first = start + before + tl.program_id(0) * CHUNK
    number = tl.arange(0, CHUNK)
    row = first + number
    far = row.to(tl.int64)
    rate = sigmoid(tl.load(beta + far * beta_stride + head).to(tl.float32))
    step = tl.load(alpha + far * alpha_stride + head).to(tl.float32) + tl.load(dt_bias + head)
    log = tl.cumsum(tl.load(ssm_a + head) * softplus(step).to(tl.float32), 0)
    source = qkv + head % KEY_HEADS * D_K
    keys = _unit_rows(source + KEY_HEADS * D_K, row, qkv_stride, 1.0, eps, D_K, BK).to(COMPUTE)
    queries = _unit_rows(source, row, qkv_stride, q_scale, eps, D_K, BK).to(COMPUTE)
    later, earlier = number[:, None], number[None, :]
    reach = tl.where(later >= earlier, log[:, None] - log[None, :], 0.0)
    mix = tl.dot(queries, tl.trans(keys), input_precision="ieee") * tl.exp(reach)
    mix = tl.where(later >= earlier, mix, 0.0)
    # Transposed: column t holds the factors of the equation of row t.
    behind = tl.where(later < earlier, log[None, :] - log[:, None], 0.0)
    factors = tl.dot(keys, tl.trans(keys), input_precision="ieee") * tl.exp(behind)
    factors = tl.where(later < earlier, factors * rate[None, :], 0.0)
    solution = tl.where(later == earlier, 1.0, 0.0)
    for solved in range(1, CHUNK):
        own = tl.sum(tl.where(earlier == solved, factors, 0.0), 1)
        change = tl.sum(own[:, None] * solution, 0)
        solution -= tl.where(later == solved, change[None, :], 0.0)
    chunk = (first // CHUNK).to(tl.int64) * HEADS + head
    place = chunk * (CHUNK * CHUNK) + later * CHUNK + earlier
    tl.store(solutions + place, (solution * rate[None, :]).to(COMPUTE))
    tl.store(mixes + place, mix.to(COMPUTE))
    tl.store(logs + chunk * CHUNK + number, log)


@triton.jit
def _delta_chunks(
    qkv,
    positions,
    cu_seqlens,
    slot_ids,
    solutions,
    mixes,
    logs,
    delta_state,
    out,
    qkv_stride,
    q_scale,
    eps,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    CHUNK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    head = tl.program_id(0)
    segment = tl.program_id(2)
    start = tl.load(cu_seqlens + segment)
    rows = tl.load(cu_seqlens + segment + 1) - start
    before, chunks = chunk_cut(tl.load(positions + start), rows, CHUNK)
    if chunks == 0:
        return
    slot = tl.load(slot_ids + segment).to(tl.int64)
    column = tl.program_id(1) * BV + tl.arange(0, BV)
    place, inside = state_tile(column, D_K, D_V, BK)
    place += (slot * HEADS + head) * (D_K * D_V)
    state = tl.load(delta_state + place, mask=inside, other=0.0)
    source = qkv + head % KEY_HEADS * D_K
    number = tl.arange(0, CHUNK)
    table = number[:, None] * CHUNK + number[None, :]
    kept = (column < D_V)[None, :]
    for chunk in range(chunks):
        first = start + before + chunk * CHUNK
        row = first + number
        far = row.to(tl.int64)[:, None]
        which = (first // CHUNK).to(tl.int64) * HEADS + head
        log = tl.load(logs + which * CHUNK + number)
        whole = tl.sum(tl.where(number == CHUNK - 1, log, 0.0), 0)
        decay = tl.exp(log)[:, None]
        operand = state.to(COMPUTE)
        keys = _unit_rows(source + KEY_HEADS * D_K, row, qkv_stride, 1.0, eps, D_K, BK).to(COMPUTE)
        value_at = qkv + far * qkv_stride + 2 * KEY_HEADS * D_K + head * D_V + column[None, :]
        value = tl.load(value_at, mask=kept, other=0.0).to(tl.float32)
        wanted = value - tl.dot(keys, operand, input_precision="ieee") * decay
        solution = tl.load(solutions + which * (CHUNK * CHUNK) + table)
        delta = tl.dot(solution, wanted.to(COMPUTE), input_precision="ieee")
        queries = _unit_rows(source, row, qkv_stride, q_scale, eps, D_K, BK).to(COMPUTE)
        result = tl.dot(queries, operand, input_precision="ieee") * decay
        mix = tl.load(mixes + which * (CHUNK * CHUNK) + table)
        result = tl.dot(mix, delta.to(COMPUTE), result, input_precision="ieee")
        target = out + (far * HEADS + head) * D_V + column[None, :]
        tl.store(target, result.to(out.dtype.element_ty), mask=kept)
        added = (delta * tl.exp(whole - log)[:, None]).to(COMPUTE)
        decayed = state * tl.exp(whole)
        state = tl.dot(tl.trans(keys), added, decayed, input_precision="ieee")
    tl.store(delta_state + place, state, mask=inside)


class _Kernels(NamedTuple):
    parts: int
    tables: Launch
    chunks: Launch


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
    logs = (key_log, delta_log, decay_log)
    rows = (qkv, alpha, beta, batch, delta_state, *logs, ssm_a, dt_bias, out)
    # Chunks do not overlap, so that the first row of each names one of so many.
    most = batch.prefill_rows // DELTA_CHUNK
    if most == 0:
        go_through(WHOLE, batch.segments, *rows, facts=facts, eps=eps)
        return
    kernels = _kernels(*facts, qkv.dtype)
    shape, device = (most, value_heads, DELTA_CHUNK), qkv.device
    solutions, mixes = torch.empty(2, *shape, DELTA_CHUNK, dtype=qkv.dtype, device=device)
    sums = torch.empty(shape, device=device)
    where, scales = (batch.positions, batch.cu_seqlens), (key_dim**-0.5, eps)
    strides = (qkv.stride(0), alpha.stride(0), beta.stride(0))
    grid = (min(most, batch.max_query // DELTA_CHUNK), value_heads, batch.num_prefill)
    made = (solutions, mixes, sums)
    kernels.tables(grid, qkv, alpha, beta, *where, ssm_a, dt_bias, *made, *strides, *scales)
    go_through(BEFORE, batch.segments, *rows, facts=facts, eps=eps)
    grid = (value_heads, kernels.parts, batch.num_prefill)
    states = (batch.slot_ids, *made, delta_state, out)
    kernels.chunks(grid, qkv, *where, *states, qkv.stride(0), *scales)
    go_through(BEHIND, batch.num_prefill, *rows, facts=facts, eps=eps)


@cache
def _kernels(
    key_heads: int, value_heads: int, key_dim: int, value_dim: int, dtype: torch.dtype
) -> _Kernels:
    facts: dict[str, Any] = {
        "KEY_HEADS": key_heads,
        "HEADS": value_heads,
        "D_K": key_dim,
        "BK": max(16, triton.next_power_of_2(key_dim)),
        "CHUNK": DELTA_CHUNK,
        "COMPUTE": TRITON_DTYPES[dtype],
    }
    return _Kernels(
        triton.cdiv(value_dim, DELTA_COLUMNS),
        Launch(_chunk_tables, warps=DELTA_TABLE_WARPS, **facts),
        Launch(_delta_chunks, warps=DELTA_WARPS, D_V=value_dim, BV=DELTA_COLUMNS, **facts),
    )
