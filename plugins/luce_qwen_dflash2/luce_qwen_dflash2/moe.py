"""The MLP of a mixture of experts: the routed ones and a shared one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from luce_core.ops.registry import OpBinder
from luce_core.weights.quant_types import QuantTensor
from luce_core.weights.tensor_claims import TensorClaims
from luce_qwen_dflash2.config import MoeConfig
from luce_qwen_dflash2.feed_forward import FeedForward
from luce_qwen_dflash2.linear import take_scale


class MoeFeedForward:
    """The weighted sum of the top experts plus a gated shared one: [T, width] -> [T, width]."""

    def __init__(
        self, ops: OpBinder, claims: TensorClaims, *, prefix: str, width: int, moe: MoeConfig
    ) -> None:
        experts, top_k = moe.experts, moe.top_k

        self._shape = (top_k, moe.inner)
        self._width = width
        self._router = ops.linear(claims.take(f"{prefix}.ffn_gate_inp.weight", experts, width))
        self._route = ops.bind("moe_route", weights=(None,), experts=experts, top_k=top_k)
        gate, up = _take_gate_up(claims, prefix, experts, moe.inner, width)
        down = claims.take(f"{prefix}.ffn_down_exps.weight", experts, width, moe.inner)
        self._gate, self._up, self._down = (
            _bind_experts(ops, weight, take_scale(claims, f"{prefix}.{name}", experts), top_k)
            for name, weight in (
                ("ffn_gate_exps", gate),
                ("ffn_up_exps", up),
                ("ffn_down_exps", down),
            )
        )
        self._swiglu = ops.bind("swiglu")
        self._sum = ops.bind("moe_sum")
        self._shared = FeedForward(
            ops, claims, prefix=prefix, width=width, inner=moe.shared_inner, suffix="_shexp"
        )
        shared_gate = claims.take(f"{prefix}.ffn_gate_inp_shexp.weight", width)
        self._shared_gate = ops.linear(_as_matrix(shared_gate))
        self._apply_gate = ops.bind("sigmoid_gate")
        self._add = ops.bind("add")

    def __call__(self, x: Tensor) -> Tensor:
        route = self._route(self._router(x))
        shared_input = x.view(-1, 1, self._width)
        gate, up = self._gate(shared_input, route), self._up(shared_input, route)
        inner = self._swiglu(gate.flatten(1), up.flatten(1)).view(-1, *self._shape)
        routed = self._sum(self._down(inner, route), route)
        shared = self._apply_gate(self._shared(x), self._shared_gate(x))
        out: Tensor = self._add(routed, shared)
        return out


def _take_gate_up(
    claims: TensorClaims, prefix: str, experts: int, inner: int, width: int
) -> tuple[QuantTensor, QuantTensor]:
    """Two tensors, or one in which each expert's gate rows come before its up rows."""
    both = claims.take_optional(f"{prefix}.ffn_gate_up_exps.weight", experts, 2 * inner, width)
    if both is None:
        gate = claims.take(f"{prefix}.ffn_gate_exps.weight", experts, inner, width)
        return gate, claims.take(f"{prefix}.ffn_up_exps.weight", experts, inner, width)
    shape = (experts, inner, width)
    gate, up = (
        QuantTensor(f"{both.name} ({what})", both.qtype, shape, rows)
        for what, rows in zip(("gate", "up"), torch.split(both.blocks, inner, 1), strict=True)
    )
    return gate, up


def _bind_experts(
    ops: OpBinder, weight: QuantTensor, scale: QuantTensor | None, top_k: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """Rows and their route -> the products of each row's experts."""
    experts, n, k = weight.shape
    facts: dict[str, Any] = {"experts": experts, "top_k": top_k, "n": n, "k": k}
    product = ops.bind("moe_matmul", weights=(weight,), qtype=weight.qtype.name, **facts)
    if scale is None:
        return product
    finish = ops.bind("moe_scale", weights=(scale,))

    def scaled(x: Tensor, route: Tensor) -> Tensor:
        out: Tensor = finish(product(x, route), route)
        return out

    return scaled


def _as_matrix(row: QuantTensor) -> QuantTensor:
    """A vector as a matrix of one row."""
    return QuantTensor(row.name, row.qtype, (1, *row.shape), row.blocks[None])
