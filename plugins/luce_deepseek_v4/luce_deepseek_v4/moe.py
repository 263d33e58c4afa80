"""The mixture of experts: a router or a table of token ids, routed experts, and a shared one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.errors import ModelFileError
from luce_core.ops.registry import OpBinder
from luce_core.weights.tensor_claims import TensorClaims
from luce_deepseek_v4.config import ModelConfig


class RoutedExperts(Protocol):
    """What runs the routed experts of a layer, wherever their weights are."""

    def __call__(self, x: Tensor, route: Tensor) -> Tensor:
        """x [T, width] and route [T, 2, top_k] (`moe_route`) -> the weighted sum [T, width]."""


class LocalExperts:
    """All of a layer's routed experts on one device, `group_rows` rows of an expert at a time (0:
    as many as the kernel likes)."""

    def __init__(
        self,
        ops: OpBinder,
        claims: TensorClaims,
        config: ModelConfig,
        *,
        layer: int,
        group_rows: int = 0,
    ) -> None:
        moe, prefix = config.moe, f"blk.{layer}"
        self._width = config.width
        self._shape = (moe.top_k, moe.inner)

        def experts(name: str, n: int, k: int) -> Callable[[Tensor, Tensor], Tensor]:
            weight = claims.take(f"{prefix}.{name}.weight", moe.experts, n, k)
            facts: dict[str, Any] = {"experts": moe.experts, "top_k": moe.top_k, "n": n, "k": k}
            facts["group_rows"] = group_rows
            return ops.bind("moe_matmul", weights=(weight,), qtype=weight.qtype.name, **facts)

        self._gate = experts("ffn_gate_exps", moe.inner, config.width)
        self._up = experts("ffn_up_exps", moe.inner, config.width)
        self._down = experts("ffn_down_exps", config.width, moe.inner)
        self._swiglu = ops.bind("swiglu", limit=moe.routed_limits[layer])
        self._sum = ops.bind("moe_sum")

    def __call__(self, x: Tensor, route: Tensor) -> Tensor:
        one_input = x.view(-1, 1, self._width)
        gate, up = self._gate(one_input, route), self._up(one_input, route)
        inner = self._swiglu(gate.flatten(1), up.flatten(1)).view(-1, *self._shape)
        out: Tensor = self._sum(self._down(inner, route), route)
        return out


class MoeFeedForward:
    """The routed experts' sum plus the shared expert: [T, width] -> [T, width].

    `experts` runs the layer's routed experts; everything else is here.
    """

    def __init__(
        self,
        ops: OpBinder,
        claims: TensorClaims,
        config: ModelConfig,
        *,
        layer: int,
        vocab_size: int,
        experts: RoutedExperts,
    ) -> None:
        moe, prefix = config.moe, f"blk.{layer}"
        router = claims.take(f"{prefix}.ffn_gate_inp.weight", moe.experts, config.width)
        self._router = ops.linear(router, out_dtype=torch.float32)
        facts: dict[str, Any] = {"experts": moe.experts, "top_k": moe.top_k, "scale": moe.scale}
        self._by_token = layer < moe.hash_layers
        if self._by_token:
            table = _take_table(claims, f"{prefix}.ffn_gate_tid2eid.weight", vocab_size, config)
            self._route = ops.bind("moe_route_by_token", weights=(table,), **facts)
        else:
            bias = claims.take(f"{prefix}.exp_probs_b.bias", moe.experts)
            scoring = "sqrt_softplus"
            self._route = ops.bind("moe_route", weights=(bias,), scoring=scoring, **facts)
        claims.take_optional(f"{prefix}.exp_probs_b_vl.bias", moe.experts)  # for images' tokens
        self._experts = experts

        def matrix(name: str, n: int, k: int) -> Callable[[Tensor], Tensor]:
            return ops.linear(claims.take(f"{prefix}.{name}.weight", n, k))

        self._gate = matrix("ffn_gate_shexp", moe.inner, config.width)
        self._up = matrix("ffn_up_shexp", moe.inner, config.width)
        self._down = matrix("ffn_down_shexp", config.width, moe.inner)
        self._swiglu = ops.bind("swiglu", limit=moe.shared_limits[layer])
        self._add = ops.bind("add")

    def __call__(self, x: Tensor, batch: PackedBatch) -> Tensor:
        logits = self._router(x)
        route = self._route(logits, batch) if self._by_token else self._route(logits)
        routed = self._experts(x, route)
        shared = self._down(self._swiglu(self._gate(x), self._up(x)))
        out: Tensor = self._add(routed, shared)
        return out


def _take_table(claims: TensorClaims, name: str, vocab_size: int, config: ModelConfig) -> Tensor:
    """Expert numbers by token id; ModelFileError if one of them is no expert."""
    experts = config.moe.experts
    table = claims.take(name, vocab_size, config.moe.top_k).dequantize()
    low, high = int(table.min()), int(table.max())
    if low < 0 or high >= experts:
        wrong = low if low < 0 else high
        raise ModelFileError(claims.path, name, f"names expert {wrong}, there are {experts}")
    return table
