"""Linear layers as files hold them: a matrix, and possibly a bias and scales.

Quantisers to NVFP4 write `NAME.scale`, which multiplies the product, and `NAME.input_scale`, which
concerns activations in 4 bits only and is passed over. Order: (x W^T) * scale + bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from luce_core.ops.registry import OpBinder
from luce_core.weights.quant_types import QuantTensor
from luce_core.weights.tensor_claims import TensorClaims


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """A matrix [N, K], its scale [1] and its bias [N]."""

    weight: QuantTensor
    scale: QuantTensor | None = None
    bias: Tensor | None = None

    @classmethod
    def take(
        cls, claims: TensorClaims, name: str, n: int, k: int, *, may_have_bias: bool = False
    ) -> LinearWeights:
        """Claim `name`.weight and what belongs to it."""
        weight = claims.take(f"{name}.weight", n, k)
        scale = take_scale(claims, name, 1)
        bias = claims.take_optional(f"{name}.bias", n) if may_have_bias else None
        return cls(weight, scale, None if bias is None else bias.dequantize())

    def bind(self, ops: OpBinder) -> Callable[[Tensor], Tensor]:
        """The layer: [R, K] -> [R, N]."""
        if self.scale is None:
            return ops.linear(self.weight, bias=self.bias)
        product = ops.linear(self.weight)
        finish = ops.bind("affine", weights=(self.scale, self.bias))

        def scaled(x: Tensor) -> Tensor:
            out: Tensor = finish(product(x))
            return out

        return scaled

    def split_heads(self, heads: int, dim: int) -> tuple[LinearWeights, LinearWeights]:
        """The first and the second `dim` rows of each of `heads` heads, as two layers.

        Rows are whole quant blocks, so they are taken as they are.
        """
        by_head = self.weight.blocks.view(heads, 2, dim, -1)
        biases = None if self.bias is None else self.bias.view(heads, 2, dim)
        shape = (heads * dim, self.weight.shape[1])
        first, second = (
            LinearWeights(
                QuantTensor(
                    f"{self.weight.name} (part {part + 1})",
                    self.weight.qtype,
                    shape,
                    by_head[:, part].flatten(0, 1),
                ),
                self.scale,
                None if biases is None else biases[:, part].flatten(),
            )
            for part in range(2)
        )
        return first, second


def take_linear(
    ops: OpBinder, claims: TensorClaims, name: str, n: int, k: int
) -> Callable[[Tensor], Tensor]:
    """The layer `name` without a bias: [R, k] -> [R, n]."""
    return LinearWeights.take(claims, name, n, k).bind(ops)


def take_scale(claims: TensorClaims, name: str, count: int) -> QuantTensor | None:
    """The scale of the matrix `name` if the file has one; that of its input is passed over."""
    claims.take_optional(f"{name}.input_scale", count)
    return claims.take_optional(f"{name}.scale", count)
