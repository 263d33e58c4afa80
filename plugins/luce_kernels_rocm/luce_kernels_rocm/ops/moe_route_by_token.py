"""moe_route_by_token: one program for each row."""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_kernels_rocm.jit.smooth import sqrt_softplus
from luce_kernels_rocm.launch import Launch
from luce_kernels_rocm.ops.moe_route import shares


@triton.jit
def _moe_route_by_token(
    logits, token_ids, table, out, stride, scale, TOP_K: tl.constexpr, B: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, B)
    inside = at < TOP_K
    token = tl.load(token_ids + row).to(tl.int64)
    numbers = tl.load(table + token * TOP_K + at, mask=inside, other=0.0)
    source = logits + row * stride + numbers.to(tl.int32)
    scores = sqrt_softplus(tl.load(source, mask=inside, other=0.0).to(tl.float32))
    target = out + row * (2 * TOP_K) + at
    tl.store(target, numbers, mask=inside)
    tl.store(target + TOP_K, shares(scores, inside, True) * scale, mask=inside)


def moe_route_by_token(
    logits: Tensor,  # [T, E]
    batch: PackedBatch,
    table: Tensor,  # [vocab, top_k] float32: expert numbers by token id
    out: Tensor,  # [T, 2, top_k] float32: expert numbers, then their weights
    *,
    experts: int,
    top_k: int,
    scale: float,
) -> None:
    grid = (logits.shape[0],)
    _launch(top_k)(grid, logits, batch.token_ids, table, out, logits.stride(0), scale)


@cache
def _launch(top_k: int) -> Launch:
    return Launch(_moe_route_by_token, warps=1, TOP_K=top_k, B=triton.next_power_of_2(top_k))
