"""Hyper-connections around a part of a layer: streams in, the part's input, streams out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from luce_core.ops.registry import OpBinder
from luce_core.weights.tensor_claims import TensorClaims
from luce_deepseek_v4.config import ModelConfig
from luce_deepseek_v4.ops.hyper_mix import mix_width


class HyperConnection:
    """x [T, streams, width] -> streams after `part`, which maps [T, width] to [T, width].

    The tensors are `prefix`_fn, _base and _scale. Their type may be any; the mixing is float32.
    """

    def __init__(
        self, ops: OpBinder, claims: TensorClaims, config: ModelConfig, *, prefix: str
    ) -> None:
        streams = config.hyper.streams
        self._mix = bind_mix(ops, claims, config, prefix=prefix, head=False)
        self._merge = ops.bind("hyper_merge", streams=streams)
        self._spread = ops.bind("hyper_spread", streams=streams)

    def __call__(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        mix = self._mix(x)
        out: Tensor = self._spread(x, mix, part(self._merge(x, mix)))
        return out


def bind_mix(
    ops: OpBinder, claims: TensorClaims, config: ModelConfig, *, prefix: str, head: bool
) -> Callable[[Tensor], Tensor]:
    """The op that makes the coefficients: [T, streams, width] -> [T, coefficients]."""
    hyper = config.hyper
    rows = mix_width(hyper.streams, head=head)
    weights: tuple[Any, ...] = (
        claims.take(f"{prefix}_fn.weight", rows, hyper.streams * config.width),
        claims.take(f"{prefix}_base.weight", rows),
        claims.take(f"{prefix}_scale.weight", 1 if head else 3),
    )
    return ops.bind(
        "hyper_mix",
        weights=weights,
        streams=hyper.streams,
        head=head,
        eps=config.eps,
        hc_eps=hyper.eps,
        iterations=hyper.iterations,
    )
