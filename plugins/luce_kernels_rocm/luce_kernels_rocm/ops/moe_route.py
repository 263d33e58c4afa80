"""moe_route: one program for a row takes the best expert `top_k` times."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_kernels_rocm.configs import ROUTE_WARPS
from luce_kernels_rocm.jit.smooth import sqrt_softplus
from luce_kernels_rocm.launch import Launch

_LEAST_SUM = tl.constexpr(1e-20)
_LEAST_RANK = tl.constexpr(-3.4e38)


@triton.jit
def shares(scores, inside, SOFTPLUS: tl.constexpr):
    """The weights of chosen experts from their scores, before the scale."""
    if SOFTPLUS:
        kept = tl.where(inside, scores, 0.0)
        return kept / (tl.sum(kept, 0) + _LEAST_SUM)
    raised = tl.exp(tl.where(inside, scores - tl.max(scores, 0), -float("inf")))
    return raised / tl.sum(raised, 0)


@triton.jit
def _moe_route(
    logits,
    bias,
    out,
    stride,
    scale,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    BE: tl.constexpr,
    BK: tl.constexpr,
):
    """What has been taken ranks below every expert, and a NaN above: numbers are those of experts
    in any case."""
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BE)
    inside = expert < EXPERTS
    scores = tl.load(logits + row * stride + expert, mask=inside, other=0.0).to(tl.float32)
    if SOFTPLUS:
        scores = sqrt_softplus(scores)
    ranked = scores
    if bias is not None:
        ranked += tl.load(bias + expert, mask=inside, other=0.0)
    ranked = tl.where(ranked != ranked, float("inf"), tl.maximum(ranked, _LEAST_RANK))
    ranked = tl.where(inside, ranked, -float("inf"))
    at = tl.arange(0, BK)
    numbers = tl.zeros([BK], tl.float32)
    chosen = tl.full([BK], -float("inf"), tl.float32)
    for place in tl.static_range(TOP_K):
        _, best = tl.max(ranked, 0, return_indices=True, return_indices_tie_break_left=True)
        is_best = expert == best
        score = tl.sum(tl.where(is_best, scores, 0.0), 0)
        numbers = tl.where(at == place, best.to(tl.float32), numbers)
        chosen = tl.where(at == place, score, chosen)
        ranked = tl.where(is_best, -float("inf"), ranked)
    kept = at < TOP_K
    target = out + row * (2 * TOP_K) + at
    tl.store(target, numbers, mask=kept)
    tl.store(target + TOP_K, shares(chosen, kept, SOFTPLUS) * scale, mask=kept)


def moe_route(
    logits: Tensor,  # [R, E]
    bias: Tensor | None,  # [E] float32
    out: Tensor,  # [R, 2, top_k] float32
    *,
    experts: int,
    top_k: int,
    scoring: str,
    scale: float,
) -> None:
    launch = _launch(experts, top_k, scoring)
    launch((logits.shape[0],), logits, bias, out, logits.stride(0), scale)


@cache
def _launch(experts: int, top_k: int, scoring: str) -> Launch:
    return Launch(
        _moe_route,
        warps=ROUTE_WARPS,
        EXPERTS=experts,
        TOP_K=top_k,
        SOFTPLUS=scoring == "sqrt_softplus",
        BE=triton.next_power_of_2(experts),
        BK=triton.next_power_of_2(top_k),
    )
