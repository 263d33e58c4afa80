"""Full attention with an output gate, over the paged cache."""

from __future__ import annotations

from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.kv_layout import KvLayout
from luce_core.ops.registry import OpBinder
from luce_core.weights.tensor_claims import TensorClaims
from luce_qwen_dflash2.config import ModelConfig
from luce_qwen_dflash2.linear import LinearWeights, take_linear
from luce_qwen_dflash2.room import NO_ROOM, Room


class GatedAttention:
    """Grouped-query attention, its result times sigmoid(gate): [T, width] -> [T, width]."""

    def __init__(
        self,
        ops: OpBinder,
        claims: TensorClaims,
        config: ModelConfig,
        *,
        prefix: str,
        layout: KvLayout,
    ) -> None:
        width, heads, dim = config.width, config.heads, config.head_dim
        kv_width = config.kv_heads * dim
        self._heads = (heads, dim)
        self._kv_heads = (config.kv_heads, dim)

        def take(name: str, n: int) -> LinearWeights:
            return LinearWeights.take(claims, f"{prefix}.{name}", n, width, may_have_bias=True)

        query, gate = take("attn_q", 2 * heads * dim).split_heads(heads, dim)
        self._q, self._gate = query.bind(ops), gate.bind(ops)
        self._k = take("attn_k", kv_width).bind(ops)
        self._v = take("attn_v", kv_width).bind(ops)
        self._out = take_linear(ops, claims, f"{prefix}.attn_output", width, heads * dim)
        q_norm = claims.take(f"{prefix}.attn_q_norm.weight", dim)
        k_norm = claims.take(f"{prefix}.attn_k_norm.weight", dim)
        self._q_norm = ops.bind("rms_norm", weights=(q_norm,), eps=config.eps)
        self._k_norm = ops.bind("rms_norm", weights=(k_norm,), eps=config.eps)
        self._rope = ops.bind("rope", **config.rope)
        self._write = ops.bind("kv_write", **layout.facts)
        self._attend = ops.bind("paged_attention", heads=heads, scale=dim**-0.5, **layout.facts)
        self._apply_gate = ops.bind("sigmoid_gate")
        self.layout = layout
        self.allocate(NO_ROOM)

    def allocate(self, room: Room) -> None:
        """Make the cache of keys and values."""
        self._cache = self.layout.allocate(room.blocks, room.device)

    def __call__(self, x: Tensor, batch: PackedBatch) -> Tensor:
        q = self._q_norm(self._q(x).view(-1, *self._heads))
        k = self._k_norm(self._k(x).view(-1, *self._kv_heads))
        v = self._v(x).view(-1, *self._kv_heads)
        q = self._rope(q, batch.positions)
        k = self._rope(k, batch.positions)
        cache = self._cache
        self._write(k, v, batch.kv_rows, cache.k, cache.v)
        attended = self._attend(q, batch, cache.k, cache.v).flatten(1)
        out: Tensor = self._out(self._apply_gate(attended, self._gate(x)))
        return out
