"""The gated delta rule over each slot's own recurrent state, in token order.

For value head h with key head h mod n_k (Yang et al. 2024, "Gated Delta Networks"):
S <- exp(g) S;  d = sigmoid(beta) (v - S^T k);  S <- S + k d^T;  o = S^T q, where
g = ssm_a softplus(alpha + dt_bias), q and k have unit length, and q is scaled by 1 / sqrt(D_k).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, Segment
from luce_core.ops.spec import SUMMED, ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_qwen_dflash2.ops import delta_rule
from luce_qwen_dflash2.ops.segments import state_segments
from luce_qwen_dflash2.ops.smooth import decay_rate, sigmoid
from luce_qwen_dflash2.ops.state_cases import MIXED, StateCase


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
    keys = key_heads * key_dim
    q, k, v = torch.split(qkv.float(), [keys, keys, value_heads * value_dim], -1)
    q = _unit(q.reshape(-1, key_heads, key_dim), eps) * key_dim**-0.5
    k = _unit(k.reshape(-1, key_heads, key_dim), eps)
    v = v.reshape(-1, value_heads, value_dim)
    rate = sigmoid(beta)[:, :, None]
    decay = decay_rate(alpha.float() + dt_bias, ssm_a)
    head = delta_rule.key_head_of(value_heads, key_heads, qkv.device)
    heads_out = out.view(-1, value_heads, value_dim)
    for segment in state_segments(batch):
        slot = segment.slot
        state = delta_state[slot].clone() if segment.is_verify else delta_state[slot]
        for row in range(segment.first, segment.stop):
            key = k[row][head]
            delta_rule.decay_(state, decay[row])
            delta = rate[row] * (v[row] - delta_rule.read(state, key))
            delta_rule.add_(state, key, delta)
            heads_out[row] = delta_rule.read(state, q[row][head])
            if segment.is_verify:
                at = row - segment.first
                key_log[slot, at] = k[row]
                delta_log[slot, at] = delta
                decay_log[slot, at] = decay[row]


def _unit(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def out_shape(
    qkv: Tensor, *step_args: Any, value_heads: int, value_dim: int, **facts: Any
) -> tuple[int, ...]:
    return (qkv.shape[0], value_heads * value_dim)


def cases() -> Iterator[OpCase]:
    decode = tuple(Segment(n, 1) for n in range(5))
    yield _case("mixed step", MIXED)
    yield _case("equal heads", MIXED, key_heads=2, value_heads=2)
    yield _case("decode only", decode, key_dim=64, value_dim=32)
    yield _case("verify only", (Segment(9, 8), Segment(1, 8)), key_dim=128, value_dim=128)
    yield _case("long prompt", (Segment(0, 200, True),), key_heads=1, value_heads=2)
    long = (Segment(5, 70, True), Segment(0, 33, True), Segment(64, 31, True))
    company = (Segment(3, 2, True), Segment(7, 1), Segment(4, 3))
    yield _case("long prompts in company", long + company, key_heads=1, value_heads=2)
    yield _case("padded", (Segment(6, 1), Segment(2, 4)), null_segments=2)


def _case(
    name: str,
    segments: tuple[Segment, ...],
    *,
    key_heads: int = 2,
    value_heads: int = 6,
    key_dim: int = 16,
    value_dim: int = 24,
    null_segments: int = 0,
) -> OpCase:
    facts = {
        "key_heads": key_heads,
        "value_heads": value_heads,
        "key_dim": key_dim,
        "value_dim": value_dim,
        "eps": 1e-6,
    }

    def make(maker: CaseMaker) -> Inputs:
        case = StateCase(maker, segments, null_segments=null_segments)
        rows = (
            maker.columns(case.rows, 2 * key_heads * key_dim + value_heads * value_dim),
            maker.columns(case.rows, value_heads),
            maker.columns(case.rows, value_heads),
        )
        caches = (
            case.state(value_heads, key_dim, value_dim),
            case.log(key_heads, key_dim),
            case.log(value_heads, value_dim),
            case.log(value_heads),
        )
        ssm_a = -maker.normal32(value_heads).abs()
        return case.inputs(rows, caches, (ssm_a, maker.normal32(value_heads)))

    return OpCase(name, facts, make)


_LOG = ("slots + 1", "1 + max_draft")

SPEC = OpSpec(
    name="gated_delta",
    doc=(
        "The gated delta rule in token order over the slot's recurrent state, value head h with "
        "key head h mod key_heads. Prefill segments and decode segments of one row write "
        "`delta_state`; longer decode segments leave it and log key, delta and decay of each row."
    ),
    args=(
        ArgSpec("qkv", ArgKind.ACTIVATION, ("T", "2 n_k D_k + H D_v"), Rows.TOKENS),
        ArgSpec("alpha", ArgKind.ACTIVATION, ("T", "H"), Rows.TOKENS),
        ArgSpec("beta", ArgKind.ACTIVATION, ("T", "H"), Rows.TOKENS),
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("delta_state", ArgKind.CACHE, ("slots + 1", "H", "D_k", "D_v"), written=True),
        ArgSpec("key_log", ArgKind.CACHE, (*_LOG, "n_k", "D_k"), written=True),
        ArgSpec("delta_log", ArgKind.CACHE, (*_LOG, "H", "D_v"), written=True),
        ArgSpec("decay_log", ArgKind.CACHE, (*_LOG, "H"), written=True),
        ArgSpec("ssm_a", ArgKind.WEIGHT, ("H",)),
        ArgSpec("dt_bias", ArgKind.WEIGHT, ("H",)),
    ),
    out=OutSpec(Rows.TOKENS, out_shape),
    facts=("key_heads", "value_heads", "key_dim", "value_dim", "eps"),
    reference=gated_delta,
    tolerance=SUMMED,
    row_invariant=True,
    split_invariant=True,
    cases=cases,
)
