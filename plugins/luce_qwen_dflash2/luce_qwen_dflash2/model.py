"""The forward pass of a hybrid model, over ops that are bound once at load."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.engine import LoadContext
from luce_core.ops.kv_layout import KvLayout
from luce_core.ops.registry import OpBinder
from luce_core.weights.tensor_claims import TensorClaims
from luce_qwen_dflash2.attention import GatedAttention
from luce_qwen_dflash2.config import ModelConfig
from luce_qwen_dflash2.delta_net import GatedDeltaNet
from luce_qwen_dflash2.draft.backlog import Backlog
from luce_qwen_dflash2.feed_forward import FeedForward
from luce_qwen_dflash2.host_filled import HostFilled
from luce_qwen_dflash2.moe import MoeFeedForward
from luce_qwen_dflash2.room import NO_ROOM, Room
from luce_qwen_dflash2.state import bytes_per_slot

BLOCK_SIZE = 16


class Layer:
    """One block: x += mixer(norm(x)); x += feed(norm(x)); [T, width] -> [T, width]."""

    def __init__(
        self,
        ops: OpBinder,
        claims: TensorClaims,
        config: ModelConfig,
        mixer: GatedAttention | GatedDeltaNet,
        *,
        prefix: str,
    ) -> None:
        def norm(name: str) -> Callable[[Tensor], Tensor]:
            weight = claims.take(f"{prefix}.{name}.weight", config.width)
            return ops.bind("rms_norm", weights=(weight,), eps=config.eps)

        self._mixer = mixer
        self._mixer_norm = norm("attn_norm")
        self._feed_norm = norm("post_attention_norm")
        width, moe = config.width, config.moe
        self._feed: FeedForward | MoeFeedForward
        if moe is None:
            self._feed = FeedForward(ops, claims, prefix=prefix, width=width, inner=config.inner)
        else:
            self._feed = MoeFeedForward(ops, claims, prefix=prefix, width=width, moe=moe)
        self._add = ops.bind("add")

    def __call__(self, x: Tensor, batch: PackedBatch) -> Tensor:
        x = self._add(x, self._mixer(self._mixer_norm(x), batch))
        out: Tensor = self._add(x, self._feed(self._feed_norm(x)))
        return out


class Model:
    """All layers, from token ids to logits on the batch's logit rows.

    A draft reads the residual streams behind the layers `features` (ascending), and shares `embed`
    (ids [R] -> [R, width]) and `head` (normed rows [R, width] -> float32 logits [R, vocab]).
    """

    def __init__(
        self, context: LoadContext, config: ModelConfig, *, features: tuple[int, ...] = ()
    ) -> None:
        assert list(features) == sorted(set(features)), features
        ops, claims = context.ops, TensorClaims(context.gguf)
        total = context.gguf.total_bytes
        table = claims.take("token_embd.weight", -1, config.width)
        self.vocab_size = table.shape[0]
        self.embed = ops.embedding(table)
        self._attention: list[GatedAttention] = []
        self._recurrent: list[GatedDeltaNet] = []
        self._layers: list[Layer] = []
        layout = KvLayout(
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            block_size=BLOCK_SIZE,
            k_type=context.limits.cache_type_k,
            v_type=context.limits.cache_type_v,
        )
        for index, is_recurrent in enumerate(config.recurrent):
            prefix = f"blk.{index}"
            mixer: GatedAttention | GatedDeltaNet
            if is_recurrent:
                mixer = GatedDeltaNet(ops, claims, config, prefix=prefix)
                self._recurrent.append(mixer)
            else:
                mixer = GatedAttention(ops, claims, config, prefix=prefix, layout=layout)
                self._attention.append(mixer)
            self._layers.append(Layer(ops, claims, config, mixer, prefix=prefix))
            context.progress(claims.claimed_bytes, total, f"layer {index + 1} of {config.layers}")
        norm = claims.take("output_norm.weight", config.width)
        self._norm = ops.bind("rms_norm", weights=(norm,), eps=config.eps)
        head = claims.take_optional("output.weight", self.vocab_size, config.width) or table
        self._gather = ops.bind("gather_rows")
        self.head = ops.linear(head, out_dtype=torch.float32)
        self._greedy = ops.bind("greedy_token")
        for block in range(config.layers, config.blocks):
            claims.skip(f"blk.{block}.", "a layer that predicts further tokens")
        claims.finish()
        context.progress(total, total, "loaded")
        self._puts = {
            layer: ops.bind("put_rows", column=place * config.width)
            for place, layer in enumerate(features)
        }
        self._delta = config.delta
        self.allocate(NO_ROOM)

    @property
    def bytes_per_token(self) -> int:
        return sum(mixer.layout.bytes_per_token for mixer in self._attention)

    def bytes_per_slot(self, max_draft: int) -> int:
        return len(self._recurrent) * bytes_per_slot(self._delta, max_draft)

    def allocate(self, room: Room, backlog: Backlog | None = None) -> None:
        """Make the KV caches, the recurrent state, and `accepted` [slots + 1] for `replay`. With
        `features`, steps leave them in `backlog`."""
        self._backlog = backlog
        for attention in self._attention:
            attention.allocate(room)
        for recurrent in self._recurrent:
            recurrent.allocate(room)
        self.accepted = HostFilled(room.slots + 1, room.device)

    def clear(self, slot: int) -> None:
        """The recurrent state of a slot before its first token."""
        for mixer in self._recurrent:
            mixer.cache.clear(slot)

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Float32 logits [L, vocab] and their best tokens [L]. Writes KV at the batch's kv_rows and
        the slots' state, but of slots with verify rows only the replay logs; and the residual
        streams behind the layers `features`, side by side, at the backlog's places.
        """
        x, backlog = self.embed(batch.token_ids), self._backlog
        for index, layer in enumerate(self._layers):
            x = layer(x, batch)
            put = self._puts.get(index)
            if put is not None and backlog is not None:
                put(x, batch, backlog.places.tensor, backlog.rows)
        logits: Tensor = self.head(self._norm(self._gather(x, batch.logit_rows)))
        return logits, self._greedy(logits)

    def replay(self, batch: PackedBatch) -> tuple[()]:
        """After `forward` on the same batch, once `accepted` says for each slot with verify rows
        how many of them became durable: bring these slots' state there."""
        for mixer in self._recurrent:
            mixer.replay(batch, self.accepted.tensor)
        return ()
