"""A gated DeltaNet layer: projections, convolution, the delta rule, gated norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.registry import OpBinder
from luce_core.weights.tensor_claims import TensorClaims
from luce_qwen_dflash2.config import ModelConfig
from luce_qwen_dflash2.linear import take_linear
from luce_qwen_dflash2.room import NO_ROOM, Room
from luce_qwen_dflash2.state import RecurrentCache

# What keeps the length of q and k above zero; the norms have the file's eps.
_UNIT_EPS = 1e-6


class GatedDeltaNet:
    """Linear attention with a recurrent state by slot: [T, width] -> [T, width]."""

    def __init__(
        self, ops: OpBinder, claims: TensorClaims, config: ModelConfig, *, prefix: str
    ) -> None:
        width, delta = config.width, config.delta
        value_heads = delta.value_heads

        def linear(name: str, n: int, k: int) -> Callable[[Tensor], Tensor]:
            return take_linear(ops, claims, f"{prefix}.{name}", n, k)

        self._heads = (value_heads, delta.value_dim)
        self._qkv = linear("attn_qkv", delta.channels, width)
        self._z = linear("attn_gate", delta.value_width, width)
        self._alpha = linear("ssm_alpha", value_heads, width)
        self._beta = linear("ssm_beta", value_heads, width)
        self._out = linear("ssm_out", width, delta.value_width)
        taps = claims.take(f"{prefix}.ssm_conv1d.weight", delta.channels, delta.kernel)
        conv: dict[str, Any] = {"channels": delta.channels, "kernel": delta.kernel}
        self._conv = ops.bind("causal_conv1d", weights=(taps,), **conv)
        self._conv_replay = ops.bind("conv_replay", **conv)
        ssm_a = claims.take(f"{prefix}.ssm_a", value_heads)
        dt_bias = claims.take(f"{prefix}.ssm_dt.bias", value_heads)
        rule: dict[str, Any] = {
            "key_heads": delta.key_heads,
            "value_heads": value_heads,
            "key_dim": delta.key_dim,
            "value_dim": delta.value_dim,
        }
        self._rule = ops.bind("gated_delta", weights=(ssm_a, dt_bias), eps=_UNIT_EPS, **rule)
        self._rule_replay = ops.bind("gated_delta_replay", **rule)
        norm = claims.take(f"{prefix}.ssm_norm.weight", delta.value_dim)
        self._norm = ops.bind("gated_rms_norm", weights=(norm,), eps=config.eps)
        self._config = delta
        self.allocate(NO_ROOM)

    def allocate(self, room: Room) -> None:
        """Make the state of all slots."""
        self.cache = RecurrentCache.allocate(
            self._config, slots=room.slots, max_draft=room.max_draft, device=room.device
        )

    def __call__(self, x: Tensor, batch: PackedBatch) -> Tensor:
        cache = self.cache
        mixed = self._conv(self._qkv(x), batch, cache.conv, cache.conv_log)
        attended = self._rule(
            mixed,
            self._alpha(x),
            self._beta(x),
            batch,
            cache.delta,
            cache.key_log,
            cache.delta_log,
            cache.decay_log,
        )
        normed = self._norm(attended.view(-1, *self._heads), self._z(x).view(-1, *self._heads))
        out: Tensor = self._out(normed.flatten(1))
        return out

    def replay(self, batch: PackedBatch, accepted: Tensor) -> None:
        """Make the first accepted[slot] rows of each verify segment durable."""
        cache = self.cache
        self._conv_replay(batch, accepted, cache.conv_log, cache.conv)
        self._rule_replay(
            batch, accepted, cache.key_log, cache.delta_log, cache.decay_log, cache.delta
        )
