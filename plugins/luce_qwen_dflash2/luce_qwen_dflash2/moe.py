"""The MLP of a mixture of experts: the routed ones and a shared one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from luce_core.ops.registry import OpBinder
from luce_core.weights.quant_types import QuantTensor
from luce_core.weights.tensor_claims import TensorClaims
from luce_qwen_dflash2.config import MoeConfig
from luce_qwen_dflash2.feed_forward import FeedForward


class MoeFeedForward:
    """The weighted sum of the top experts plus a gated shared one: [T, width] -> [T, width]."""

    def __init__(
        self, ops: OpBinder, claims: TensorClaims, *, prefix: str, width: int, moe: MoeConfig
    ) -> None:
        experts, top_k = moe.experts, moe.top_k

        def expert_linear(name: str, n: int, k: int) -> Callable[[Tensor, Tensor], Tensor]:
            weight = claims.take(f"{prefix}.{name}.weight", experts, n, k)
            facts: dict[str, Any] = {"experts": experts, "top_k": top_k, "n": n, "k": k}
            return ops.bind("moe_matmul", weights=(weight,), qtype=weight.qtype.name, **facts)

        self._shape = (top_k, moe.inner)
        self._width = width
        self._router = ops.linear(claims.take(f"{prefix}.ffn_gate_inp.weight", experts, width))
        self._route = ops.bind("moe_route", experts=experts, top_k=top_k)
        self._gate = expert_linear("ffn_gate_exps", moe.inner, width)
        self._up = expert_linear("ffn_up_exps", moe.inner, width)
        self._down = expert_linear("ffn_down_exps", width, moe.inner)
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


def _as_matrix(row: QuantTensor) -> QuantTensor:
    """A vector as a matrix of one row."""
    return QuantTensor(row.name, row.qtype, (1, *row.shape), row.blocks[None])
