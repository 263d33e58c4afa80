"""The dense MLP."""

from __future__ import annotations

from torch import Tensor

from luce_core.ops.registry import OpBinder
from luce_core.weights.tensor_claims import TensorClaims
from luce_qwen_dflash2.linear import take_linear


class FeedForward:
    """Gated SwiGLU: [T, width] -> [T, width]. The tensors are ffn_gate`suffix` and so on."""

    def __init__(
        self,
        ops: OpBinder,
        claims: TensorClaims,
        *,
        prefix: str,
        width: int,
        inner: int,
        suffix: str = "",
    ) -> None:
        self._gate = take_linear(ops, claims, f"{prefix}.ffn_gate{suffix}", inner, width)
        self._up = take_linear(ops, claims, f"{prefix}.ffn_up{suffix}", inner, width)
        self._down = take_linear(ops, claims, f"{prefix}.ffn_down{suffix}", width, inner)
        self._swiglu = ops.bind("swiglu")

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self._down(self._swiglu(self._gate(x), self._up(x)))
        return out
