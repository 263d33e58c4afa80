"""The lightning indexer: which entries each row of a layer of ratio 4 attends to."""

from __future__ import annotations

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.registry import OpBinder
from luce_core.weights.tensor_claims import TensorClaims
from luce_deepseek_v4.compressor import Compressor
from luce_deepseek_v4.config import ModelConfig
from luce_deepseek_v4.ops.entry_cache import EntryLayout


class Indexer:
    """x [T, width], and the query's latent [T, q_rank] -> picks [T, top_k] of entries."""

    def __init__(
        self, ops: OpBinder, claims: TensorClaims, config: ModelConfig, *, prefix: str, cache: str
    ) -> None:
        indexer, attention = config.indexer, config.attention
        heads, dim = indexer.heads, indexer.head_dim
        layout = EntryLayout(ratio=4, head_dim=dim, cache_type=cache)
        self._heads = (heads, dim)
        self.compressor = Compressor(
            ops,
            claims,
            prefix=f"{prefix}.indexer_compressor",
            width=config.width,
            layout=layout,
            rope=attention.compressed_rope,
            eps=config.eps,
        )
        query = claims.take(f"{prefix}.indexer.attn_q_b.weight", heads * dim, attention.q_rank)
        self._query = ops.linear(query)
        self._rope = ops.bind("tail_rope", head_dim=dim, **attention.compressed_rope)
        weights = claims.take(f"{prefix}.indexer.proj.weight", heads, config.width)
        self._weights = ops.linear(weights, out_dtype=torch.float32)
        self._pick = ops.bind(
            "index_topk",
            heads=heads,
            head_dim=dim,
            ratio=layout.ratio,
            top_k=indexer.top_k,
            cache_type=cache,
        )

    def __call__(self, x: Tensor, latent: Tensor, batch: PackedBatch) -> Tensor:
        self.compressor(x, batch)
        query = self._rope(self._query(latent).view(-1, *self._heads), batch)
        entries = self.compressor.state.entries
        picks: Tensor = self._pick(query, self._weights(x), batch, entries)
        return picks
