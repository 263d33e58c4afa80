"""Full attention with an output gate, over the paged cache."""

from __future__ import annotations

from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.kv_layout import KvLayout
from luce_core.ops.registry import OpBinder
from luce_core.weights.quant_types import QuantTensor
from luce_core.weights.tensor_claims import TensorClaims
from luce_qwen_dflash2.config import ModelConfig
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
        both = claims.take(f"{prefix}.attn_q.weight", 2 * heads * dim, width)
        query, gate = split_query_gate(both, heads, dim)
        self._q = ops.linear(query)
        self._gate = ops.linear(gate)
        self._k = ops.linear(claims.take(f"{prefix}.attn_k.weight", kv_width, width))
        self._v = ops.linear(claims.take(f"{prefix}.attn_v.weight", kv_width, width))
        self._out = ops.linear(claims.take(f"{prefix}.attn_output.weight", width, heads * dim))
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


def split_query_gate(weight: QuantTensor, heads: int, dim: int) -> tuple[QuantTensor, QuantTensor]:
    """The query rows and the gate rows of a matrix that holds both, `dim` and `dim` for each head.

    Rows are whole quant blocks, so they are taken as they are.
    """
    by_head = weight.blocks.view(heads, 2, dim, -1)
    shape = (heads * dim, weight.shape[1])
    query, gate = (
        QuantTensor(f"{weight.name} ({what})", weight.qtype, shape, by_head[:, part].flatten(0, 1))
        for part, what in enumerate(("query", "gate"))
    )
    return query, gate
