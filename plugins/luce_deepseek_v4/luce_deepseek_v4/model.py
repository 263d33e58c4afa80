"""The forward pass, over ops that are bound once at load."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.engine import LoadContext
from luce_core.ops.registry import OpBinder
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.tensor_claims import TensorClaims
from luce_deepseek_v4.attention import Attention
from luce_deepseek_v4.config import ModelConfig
from luce_deepseek_v4.hyper import HyperConnection, bind_mix
from luce_deepseek_v4.moe import LocalExperts, MoeFeedForward, RoutedExperts
from luce_deepseek_v4.ops.entry_cache import BLOCK_TOKENS
from luce_deepseek_v4.room import NO_ROOM, CacheTypes, Room

log = logging.getLogger(__name__)

# Given a layer, its routed experts.
TakeExperts = Callable[[OpBinder, TensorClaims, ModelConfig, int], RoutedExperts]


def local_experts(
    ops: OpBinder, claims: TensorClaims, config: ModelConfig, layer: int
) -> RoutedExperts:
    """The usual `take_experts`: all experts on the model's device."""
    return LocalExperts(ops, claims, config, layer=layer)


class Layer:
    """Attention and experts, each inside hyper-connections: [T, streams, width] -> the same."""

    def __init__(
        self,
        ops: OpBinder,
        claims: TensorClaims,
        config: ModelConfig,
        attention: Attention,
        feed: MoeFeedForward,
        *,
        prefix: str,
    ) -> None:
        def norm(name: str) -> Callable[[Tensor], Tensor]:
            weight = claims.take(f"{prefix}.{name}.weight", config.width)
            return ops.bind("rms_norm", weights=(weight,), eps=config.eps)

        self._attention, self._feed = attention, feed
        self._attention_norm, self._feed_norm = norm("attn_norm"), norm("ffn_norm")
        self._around_attention = HyperConnection(ops, claims, config, prefix=f"{prefix}.hc_attn")
        self._around_feed = HyperConnection(ops, claims, config, prefix=f"{prefix}.hc_ffn")

    def __call__(self, x: Tensor, batch: PackedBatch, group_route: Tensor) -> Tensor:
        x = self._around_attention(
            x, lambda part: self._attention(self._attention_norm(part), batch, group_route)
        )
        return self._around_feed(x, lambda part: self._feed(self._feed_norm(part), batch))


class Model:
    """All layers, from token ids to logits on the batch's logit rows."""

    def __init__(
        self,
        context: LoadContext,
        config: ModelConfig,
        types: CacheTypes,
        *,
        take_experts: TakeExperts = local_experts,
    ) -> None:
        ops, claims = context.ops, TensorClaims(context.gguf)
        total = context.gguf.total_bytes
        table = claims.take("token_embd.weight", -1, config.width)
        self.vocab_size = table.shape[0]
        self._embed = ops.embedding(table)
        self._begin = ops.bind("hyper_begin", streams=config.hyper.streams)
        self._group_route = ops.bind("group_route", groups=config.attention.out_groups)
        self._attention: list[Attention] = []
        self._layers: list[Layer] = []
        for index, ratio in enumerate(config.ratios):
            prefix = f"blk.{index}"
            attention = Attention(ops, claims, config, prefix=prefix, ratio=ratio, types=types)
            feed = MoeFeedForward(
                ops,
                claims,
                config,
                layer=index,
                vocab_size=self.vocab_size,
                experts=take_experts(ops, claims, config, index),
            )
            self._attention.append(attention)
            self._layers.append(Layer(ops, claims, config, attention, feed, prefix=prefix))
            context.progress(claims.claimed_bytes, total, f"layer {index + 1} of {config.layers}")
        self._mix = bind_mix(ops, claims, config, prefix="output_hc", head=True)
        self._merge = ops.bind("hyper_merge", streams=config.hyper.streams)
        self._gather = ops.bind("gather_rows")
        norm = claims.take("output_norm.weight", config.width)
        self._norm = ops.bind("rms_norm", weights=(norm,), eps=config.eps)
        head = claims.take("output.weight", self.vocab_size, config.width)
        self._head = ops.linear(head, out_dtype=torch.float32)
        self._greedy = ops.bind("greedy_token")
        for block in range(config.layers, config.blocks):
            claims.skip(f"blk.{block}.", "a layer that predicts further tokens")
        claims.finish()
        _warn_of_rounded_mixing(context.gguf)
        context.progress(total, total, "loaded")
        self.allocate(NO_ROOM)

    @property
    def bytes_per_token(self) -> int:
        """Of the compressed entries, rounded up: a block holds whole entries."""
        states = (state for attention in self._attention for state in attention.compressed)
        return -(-sum(state.layout.bytes_per_block for state in states) // BLOCK_TOKENS)

    def bytes_per_slot(self, ring: int) -> int:
        """Of rings of so many entries, and of open pools."""
        return sum(
            attention.ring.bytes_per_slot(ring)
            + sum(state.bytes_per_slot for state in attention.compressed)
            for attention in self._attention
        )

    def allocate(self, room: Room) -> None:
        """Make rings, pools and the caches of entries."""
        for attention in self._attention:
            attention.allocate(room)

    def clear(self, slot: int) -> None:
        """The state of a slot before its first token."""
        for attention in self._attention:
            attention.ring.clear(slot)
            for state in attention.compressed:
                state.clear(slot)

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Float32 logits [L, vocab] and their best tokens [L]; writes the slots' rings and pools,
        and the entries that the rows complete."""
        group_route = self._group_route(batch)
        x = self._begin(self._embed(batch.token_ids))
        for layer in self._layers:
            x = layer(x, batch, group_route)
        rows = self._gather(self._merge(x, self._mix(x)), batch.logit_rows)
        logits: Tensor = self._head(self._norm(rows))
        return logits, self._greedy(logits)


def _warn_of_rounded_mixing(gguf: GgufFile) -> None:
    """Sinkhorn makes errors of the mixing matrices grow: 1e-2 in a layer's output from bfloat16."""
    rounded = [
        name
        for name, tensor in gguf.tensors.items()
        if "hc_" in name and name.endswith("_fn.weight") and tensor.qtype.name != "F32"
    ]
    if rounded:
        log.warning(
            "%s: %d matrices of hyper-connections are stored below F32, %s first: they are mixed "
            "in float32, but the file has lost what F32 holds",
            gguf.path,
            len(rounded),
            rounded[0],
        )
