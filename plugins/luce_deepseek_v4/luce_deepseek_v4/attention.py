"""Attention over a window and compressed entries, of which there are three kinds by ratio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.registry import OpBinder
from luce_core.weights.quant_types import QuantTensor
from luce_core.weights.tensor_claims import TensorClaims
from luce_deepseek_v4.compressor import Compressor
from luce_deepseek_v4.config import ModelConfig
from luce_deepseek_v4.indexer import Indexer
from luce_deepseek_v4.ops.entry_cache import EntryLayout
from luce_deepseek_v4.room import CacheTypes, Room
from luce_deepseek_v4.state import EntryState, Ring, no_entries


class Attention:
    """x [T, width] and the step's group route -> [T, width].

    Query and output go through low ranks; one vector of head_dim is key and value of all heads, and
    the output is turned back by the query's position, since the values were turned by theirs.
    """

    def __init__(
        self,
        ops: OpBinder,
        claims: TensorClaims,
        config: ModelConfig,
        *,
        prefix: str,
        ratio: int,
        types: CacheTypes,
    ) -> None:
        attention = config.attention
        heads, dim = attention.heads, attention.head_dim
        self._heads = (heads, dim)
        self._groups = attention.out_groups
        rope = attention.compressed_rope if ratio else attention.plain_rope

        def matrix(name: str, n: int, k: int) -> Callable[[Tensor], Tensor]:
            return ops.linear(claims.take(f"{prefix}.{name}.weight", n, k))

        def norm(name: str, n: int) -> Callable[[Tensor], Tensor]:
            weight = claims.take(f"{prefix}.{name}.weight", n)
            return ops.bind("rms_norm", weights=(weight,), eps=config.eps)

        self._query_a = matrix("attn_q_a", attention.q_rank, config.width)
        self._query_norm = norm("attn_q_a_norm", attention.q_rank)
        self._query_b = matrix("attn_q_b", heads * dim, attention.q_rank)
        self._head_norm = ops.bind("rms_norm", weights=(torch.ones(dim),), eps=config.eps)
        self._kv = matrix("attn_kv", dim, config.width)
        self._kv_norm = norm("attn_kv_a_norm", dim)
        self._rope = ops.bind("tail_rope", head_dim=dim, **rope)
        self._unrope = ops.bind("tail_rope", head_dim=dim, **rope, inverse=True)
        self._write = ops.bind("window_write")
        self._attend = _Attend(ops, claims, config, prefix=prefix, ratio=ratio, types=types)
        self._out_a = _bind_groups(ops, claims, config, prefix=prefix)
        self._out_b = matrix("attn_output_b", config.width, self._groups * attention.out_rank)
        self.ring = self._attend.ring

    def __call__(self, x: Tensor, batch: PackedBatch, group_route: Tensor) -> Tensor:
        latent = self._query_norm(self._query_a(x))
        query = self._head_norm(self._query_b(latent).view(-1, *self._heads))
        kv = self._kv_norm(self._kv(x)).view(-1, 1, self._heads[1])
        self._write(self._rope(kv, batch).flatten(1), batch, self.ring.rows)
        attended = self._attend(x, latent, self._rope(query, batch), batch)
        grouped = self._unrope(attended, batch).flatten(1).unflatten(1, (self._groups, -1))
        return self._out_b(self._out_a(grouped, group_route).flatten(1))

    @property
    def compressed(self) -> tuple[EntryState, ...]:
        """The states of the layer's compressors."""
        return self._attend.compressed

    def allocate(self, room: Room) -> None:
        self._attend.allocate(room)


class _Attend:
    """Queries [T, heads, dim] -> what they attend to, after the entries of this step are there."""

    def __init__(
        self,
        ops: OpBinder,
        claims: TensorClaims,
        config: ModelConfig,
        *,
        prefix: str,
        ratio: int,
        types: CacheTypes,
    ) -> None:
        attention = config.attention
        facts: dict[str, Any] = {
            "heads": attention.heads,
            "head_dim": attention.head_dim,
            "window": attention.window,
            "ratio": ratio,
            "cache_type": types.entries,
            "scale": attention.head_dim**-0.5,
        }
        self.ring = Ring(attention.head_dim, types.ring)
        self._layout = EntryLayout(
            ratio=ratio or 128, head_dim=attention.head_dim, cache_type=types.entries
        )
        self._entries = no_entries(self._layout, torch.device("cpu"))
        self._compressor: Compressor | None = None
        self._indexer: Indexer | None = None
        sinks = (claims.take(f"{prefix}.attn_sinks.weight", attention.heads),)
        if ratio:
            self._compressor = Compressor(
                ops,
                claims,
                prefix=f"{prefix}.attn_compressor",
                width=config.width,
                layout=self._layout,
                rope=attention.compressed_rope,
                eps=config.eps,
            )
        if ratio == 4:
            self._indexer = Indexer(ops, claims, config, prefix=prefix, cache=types.indexer)
            top_k = config.indexer.top_k
            self._attend = ops.bind("sparse_attention", weights=sinks, top_k=top_k, **facts)
        else:
            self._attend = ops.bind("window_attention", weights=sinks, **facts)

    def __call__(self, x: Tensor, latent: Tensor, query: Tensor, batch: PackedBatch) -> Tensor:
        if self._compressor is not None:
            self._compressor(x, batch)
        picks = () if self._indexer is None else (self._indexer(x, latent, batch),)
        out: Tensor = self._attend(query, *picks, batch, self.ring.rows, self._entries)
        return out

    @property
    def compressed(self) -> tuple[EntryState, ...]:
        own = () if self._compressor is None else (self._compressor.state,)
        return own if self._indexer is None else (*own, self._indexer.compressor.state)

    def allocate(self, room: Room) -> None:
        self.ring.allocate(room)
        for state in self.compressed:
            state.allocate(room)
        if self._compressor is None:
            self._entries = no_entries(self._layout, room.device)
        else:
            self._entries = self._compressor.state.entries


def _bind_groups(
    ops: OpBinder, claims: TensorClaims, config: ModelConfig, *, prefix: str
) -> Callable[[Tensor, Tensor], Tensor]:
    """The first output matrix, one for each group of heads: [T, groups, k] -> [T, groups, rank].

    A file holds it as [groups * rank, k] or [groups, rank, k]. Products by group are those of
    experts of whom every row asks all.
    """
    attention = config.attention
    groups, rank = attention.out_groups, attention.out_rank
    k = attention.heads * attention.head_dim // groups
    name = f"{prefix}.attn_output_a.weight"
    weight = claims.take_any(name, (groups * rank, k), (groups, rank, k))
    whole = QuantTensor(
        weight.name,
        weight.qtype,
        (groups, rank, k),
        weight.blocks.view(groups, rank, -1),
        weight.mapped,
    )
    return ops.bind(
        "moe_matmul",
        weights=(whole,),
        qtype=whole.qtype.name,
        experts=groups,
        top_k=groups,
        n=rank,
        k=k,
    )
