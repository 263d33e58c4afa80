"""The keys of a DeepSeek V4 file, read once. What this code does not do is refused by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from luce_core.weights.gguf_file import GgufFile
from luce_deepseek_v4.keys import Keys

RATIOS = (0, 4, 128)
"""What compress_ratios may say of a layer: a window only, overlapping windows of 4 with an indexer,
windows of 128."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Sizes of every layer's attention. `plain_rope` and `compressed_rope` are facts of the
    rotation in layers of ratio 0 and in the others."""

    heads: int
    head_dim: int
    q_rank: int
    out_groups: int
    out_rank: int
    window: int
    plain_rope: Mapping[str, Any]
    compressed_rope: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerConfig:
    """What picks the entries of layers of ratio 4."""

    heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConfig:
    """Hyper-connections: residual streams, rounds of Sinkhorn, and what keeps sums from zero."""

    streams: int
    iterations: int
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """The mixture of experts. `routed_limits` and `shared_limits` are the clamps of SwiGLU by
    layer, None where there is none; the first `hash_layers` layers route by token id."""

    experts: int
    top_k: int
    inner: int
    scale: float
    hash_layers: int
    routed_limits: tuple[float | None, ...]
    shared_limits: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of one model. `blocks` counts the layers of the file, of which those
    behind the trunk predict further tokens; `ratios` has one number for each layer of the trunk."""

    ratios: tuple[int, ...]
    blocks: int
    width: int
    context: int
    eps: float
    attention: AttentionConfig
    indexer: IndexerConfig
    hyper: HyperConfig
    moe: MoeConfig

    @property
    def layers(self) -> int:
        return len(self.ratios)


def read_config(gguf: GgufFile) -> ModelConfig:
    """The config of a file; ModelFileError names a key that is missing or means something else."""
    keys = Keys(gguf.metadata)
    keys.refuse_variants()
    blocks = keys.size("block_count")
    layers = blocks - _predicting_blocks(gguf, keys, blocks)
    return ModelConfig(
        ratios=_ratios(keys, layers),
        blocks=blocks,
        width=keys.size("embedding_length"),
        context=keys.size("context_length"),
        eps=keys.float("attention.layer_norm_rms_epsilon"),
        attention=_attention(keys),
        indexer=IndexerConfig(
            heads=keys.size("attention.indexer.head_count"),
            head_dim=keys.size("attention.indexer.key_length"),
            top_k=keys.size("attention.indexer.top_k"),
        ),
        hyper=HyperConfig(
            streams=keys.size("hyper_connection.count"),
            iterations=keys.size("hyper_connection.sinkhorn_iterations"),
            eps=keys.float("hyper_connection.epsilon"),
        ),
        moe=_moe(keys, layers, blocks),
    )


def _predicting_blocks(gguf: GgufFile, keys: Keys, blocks: int) -> int:
    """Blocks behind the trunk. A file may state them and not have their tensors; then `block_count`
    is the trunk's, as llama.cpp reads it."""
    stated = keys.int("nextn_predict_layers", 0)
    if not 0 <= stated < blocks:
        raise keys.wrong("nextn_predict_layers", f"less than the {blocks} blocks")
    has_tensors = f"blk.{blocks - stated}.nextn.eh_proj.weight" in gguf.tensors
    return stated if has_tensors else 0


def _ratios(keys: Keys, layers: int) -> tuple[int, ...]:
    ratios = keys.ints("attention.compress_ratios")
    if len(ratios) < layers:
        raise keys.wrong("attention.compress_ratios", f"at least {layers} numbers, one a layer")
    if not set(ratios[:layers]) <= set(RATIOS):
        raise keys.wrong("attention.compress_ratios", f"of {', '.join(map(str, RATIOS))}")
    return ratios[:layers]


def _attention(keys: Keys) -> AttentionConfig:
    heads, head_dim = keys.size("attention.head_count"), keys.size("attention.key_length")
    keys.expect_int("attention.head_count_kv", (1,))
    keys.expect_int("attention.value_length", (head_dim,), head_dim)
    groups = keys.size("attention.output_group_count")
    if heads % groups:
        raise keys.wrong("attention.output_group_count", f"a divisor of the {heads} heads")
    rotary_dim = keys.size("rope.dimension_count")
    indexer_dim = keys.size("attention.indexer.key_length")
    if rotary_dim % 2 or rotary_dim > min(head_dim, indexer_dim):
        most = min(head_dim, indexer_dim)
        raise keys.wrong("rope.dimension_count", f"even and at most {most}")
    plain = {"rotary_dim": rotary_dim, "theta": keys.float("rope.freq_base")}
    compressed = {
        "rotary_dim": rotary_dim,
        "theta": keys.float("attention.compress_rope_freq_base"),
        **keys.yarn_facts(),
    }
    return AttentionConfig(
        heads=heads,
        head_dim=head_dim,
        q_rank=keys.size("attention.q_lora_rank"),
        out_groups=groups,
        out_rank=keys.size("attention.output_lora_rank"),
        window=keys.size("attention.sliding_window"),
        plain_rope=plain,
        compressed_rope=compressed,
    )


def _moe(keys: Keys, layers: int, blocks: int) -> MoeConfig:
    experts, top_k = keys.size("expert_count"), keys.size("expert_used_count")
    if top_k > experts:
        raise keys.wrong("expert_used_count", f"1 to the {experts} experts")
    keys.expect_int("expert_shared_count", (1,))
    keys.expect_int("expert_gating_func", (4,))  # sqrt(softplus)
    keys.expect_bool("expert_weights_norm", (True,))
    hash_layers = keys.int("hash_layer_count")
    if not 0 <= hash_layers <= layers:
        raise keys.wrong("hash_layer_count", f"0 to the {layers} layers")
    inner = set(keys.per_layer_ints("expert_feed_forward_length", blocks)[:layers])
    if len(inner) > 1 or min(inner) < 1:
        raise keys.wrong("expert_feed_forward_length", "one positive number for all layers")
    routed = keys.limits("swiglu_clamp_exp", layers)
    has_shared = keys.has("swiglu_clamp_shexp")
    return MoeConfig(
        experts=experts,
        top_k=top_k,
        inner=min(inner),
        scale=keys.float("expert_weights_scale"),
        hash_layers=hash_layers,
        routed_limits=routed,
        shared_limits=keys.limits("swiglu_clamp_shexp", layers) if has_shared else routed,
    )
