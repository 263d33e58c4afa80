"""The forward pass of a dense transformer, over ops that are bound once at load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.engine import LoadContext
from luce_core.ops.kv_layout import KvCache, KvLayout
from luce_core.ops.registry import OpBinder
from luce_core.weights.tensor_claims import TensorClaims
from luce_llama.config import ModelConfig

BLOCK_SIZE = 16


class Attention:
    """Grouped-query attention with rope over a paged cache: x [T, width] -> [T, width]."""

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
        kv_heads = layout.kv_heads
        self._heads = (heads, dim)
        self._kv_heads = (kv_heads, dim)

        def linear(name: str, n: int, k: int) -> Callable[[Tensor], Tensor]:
            weight = claims.take(f"{prefix}.{name}.weight", n, k)
            return ops.linear(weight, bias=claims.take_optional(f"{prefix}.{name}.bias", n))

        self._q = linear("attn_q", heads * dim, width)
        self._k = linear("attn_k", kv_heads * dim, width)
        self._v = linear("attn_v", kv_heads * dim, width)
        self._out = linear("attn_output", width, heads * dim)
        self._q_norm = self._k_norm = None
        if config.has_head_norms:
            q_norm = claims.take(f"{prefix}.attn_q_norm.weight", dim)
            k_norm = claims.take(f"{prefix}.attn_k_norm.weight", dim)
            self._q_norm = ops.bind("rms_norm", weights=(q_norm,), eps=config.eps)
            self._k_norm = ops.bind("rms_norm", weights=(k_norm,), eps=config.eps)
        self._rope = ops.bind("rope", **config.rope)
        self._write = ops.bind("kv_write", **layout.facts)
        self._attend = ops.bind("paged_attention", heads=heads, scale=dim**-0.5, **layout.facts)

    def __call__(self, x: Tensor, batch: PackedBatch, cache: KvCache) -> Tensor:
        q = self._q(x).view(-1, *self._heads)
        k = self._k(x).view(-1, *self._kv_heads)
        v = self._v(x).view(-1, *self._kv_heads)
        if self._q_norm is not None and self._k_norm is not None:
            q, k = self._q_norm(q), self._k_norm(k)
        q = self._rope(q, batch.positions)
        k = self._rope(k, batch.positions)
        self._write(k, v, batch.kv_rows, cache.k, cache.v)
        return self._out(self._attend(q, batch, cache.k, cache.v).flatten(1))


class FeedForward:
    """Gated SwiGLU: x [T, width] -> [T, width]."""

    def __init__(
        self, ops: OpBinder, claims: TensorClaims, config: ModelConfig, *, prefix: str
    ) -> None:
        gate = claims.take(f"{prefix}.ffn_gate.weight", -1, config.width)
        inner = gate.shape[0]
        self._gate = ops.linear(gate)
        self._up = ops.linear(claims.take(f"{prefix}.ffn_up.weight", inner, config.width))
        self._down = ops.linear(claims.take(f"{prefix}.ffn_down.weight", config.width, inner))
        self._swiglu = ops.bind("swiglu")

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self._down(self._swiglu(self._gate(x), self._up(x)))
        return out


class Layer:
    """One transformer block: x [T, width] -> [T, width]."""

    def __init__(
        self,
        ops: OpBinder,
        claims: TensorClaims,
        config: ModelConfig,
        *,
        index: int,
        layout: KvLayout,
    ) -> None:
        prefix = f"blk.{index}"
        attention_norm = claims.take(f"{prefix}.attn_norm.weight", config.width)
        feed_norm = claims.take(f"{prefix}.ffn_norm.weight", config.width)
        self._attention_norm = ops.bind("rms_norm", weights=(attention_norm,), eps=config.eps)
        self._attention = Attention(ops, claims, config, prefix=prefix, layout=layout)
        self._feed_norm = ops.bind("rms_norm", weights=(feed_norm,), eps=config.eps)
        self._feed = FeedForward(ops, claims, config, prefix=prefix)
        self._add = ops.bind("add")

    def __call__(self, x: Tensor, batch: PackedBatch, cache: KvCache) -> Tensor:
        x = self._add(x, self._attention(self._attention_norm(x), batch, cache))
        out: Tensor = self._add(x, self._feed(self._feed_norm(x)))
        return out


class Model:
    """All layers, from token ids to logits on the batch's logit rows."""

    def __init__(self, context: LoadContext, config: ModelConfig) -> None:
        ops, claims = context.ops, TensorClaims(context.gguf)
        total = context.gguf.total_bytes
        table = claims.take("token_embd.weight", -1, config.width)
        self.vocab_size = table.shape[0]
        self.layouts = [
            KvLayout(
                kv_heads=kv_heads,
                head_dim=config.head_dim,
                block_size=BLOCK_SIZE,
                k_type=context.limits.cache_type_k,
                v_type=context.limits.cache_type_v,
            )
            for kv_heads in config.kv_heads
        ]
        config = _with_file_rope_factors(config, claims)
        self._embed = ops.embedding(table)
        context.progress(claims.claimed_bytes, total, "embedding")
        self._layers: list[Layer] = []
        for index, layout in enumerate(self.layouts):
            self._layers.append(Layer(ops, claims, config, index=index, layout=layout))
            context.progress(claims.claimed_bytes, total, f"layer {index + 1} of {config.layers}")
        norm = claims.take("output_norm.weight", config.width)
        self._norm = ops.bind("rms_norm", weights=(norm,), eps=config.eps)
        head = claims.take_optional("output.weight", self.vocab_size, config.width) or table
        self._gather = ops.bind("gather_rows")
        self._head = ops.linear(head, out_dtype=torch.float32)
        self._greedy = ops.bind("greedy_token")
        claims.finish()
        context.progress(total, total, "loaded")
        self._caches: list[KvCache] = []

    def allocate(self, total_blocks: int, device: torch.device) -> None:
        """Make the caches: total_blocks blocks and the null block, per layer."""
        self._caches = [layout.allocate(total_blocks, device) for layout in self.layouts]

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Float32 logits [L, vocab] and their best tokens [L]; writes the caches at the batch's
        kv_rows."""
        x = self._embed(batch.token_ids)
        for layer, cache in zip(self._layers, self._caches, strict=True):
            x = layer(x, batch, cache)
        logits: Tensor = self._head(self._norm(self._gather(x, batch.logit_rows)))
        return logits, self._greedy(logits)


def _with_file_rope_factors(config: ModelConfig, claims: TensorClaims) -> ModelConfig:
    """Llama 3.1 files carry its frequency scaling as a tensor of divisors."""
    factors = claims.take_optional("rope_freqs.weight", config.rope["rotary_dim"] // 2)
    if factors is None:
        return config
    divisors = tuple(factors.dequantize().tolist())
    return replace(config, rope={**config.rope, "freq_factors": divisors})
