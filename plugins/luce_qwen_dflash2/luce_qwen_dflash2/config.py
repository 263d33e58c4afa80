"""The keys of a hybrid GGUF model, read once. What this code does not do is refused by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from luce_core.weights.rope_keys import rope_facts
from luce_core.weights.typed_metadata import TypedMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaConfig:
    """Sizes of the gated DeltaNet layers. Value head h uses key head h mod key_heads."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def key_width(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """What the convolution runs over: q, k and v side by side."""
        return 2 * self.key_width + self.value_width


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Sizes of a mixture of experts. `inner` and `shared_inner` are the MLPs' widths inside."""

    experts: int
    top_k: int
    inner: int
    shared_inner: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of one model.

    `recurrent` says of each layer whether it is gated DeltaNet (else full attention); `blocks`
    counts the layers of the file, of which those behind the trunk predict further tokens. `rope`
    holds the facts of the rope op. `inner` is the MLPs' width inside; with `moe` it is not used.
    """

    recurrent: tuple[bool, ...]
    blocks: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    eps: float
    rope: Mapping[str, Any]
    delta: DeltaConfig
    moe: MoeConfig | None = None

    @property
    def layers(self) -> int:
        return len(self.recurrent)


def read_config(metadata: TypedMetadata) -> ModelConfig:
    """The config of a file; ModelFileError names a key that is missing or means something else."""
    arch = metadata.str("general.architecture")

    def size(name: str, *default: int) -> int:
        value = metadata.int(f"{arch}.{name}", *default)
        if value < 1:
            raise metadata.wrong(f"{arch}.{name}", "at least 1")
        return value

    recurrent = _recurrent_layers(metadata, arch)
    width, heads = size("embedding_length"), size("attention.head_count")
    kv_heads = _kv_heads(metadata, arch, recurrent, heads)
    head_dim = size("attention.key_length", width // heads)
    metadata.expect_int(f"{arch}.attention.value_length", (head_dim,), head_dim)
    # rope.dimension_sections share out three positions, which are equal for text: plain rope.
    rope = rope_facts(metadata, head_dim, interleaved=False)
    moe = _moe_config(metadata, arch) if arch == "qwen35moe" else None
    return ModelConfig(
        recurrent=recurrent,
        blocks=size("block_count"),
        width=width,
        inner=size("feed_forward_length") if moe is None else moe.inner,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context=size("context_length"),
        eps=metadata.float(f"{arch}.attention.layer_norm_rms_epsilon"),
        rope=rope,
        delta=_delta_config(metadata, arch),
        moe=moe,
    )


def _recurrent_layers(metadata: TypedMetadata, arch: str) -> tuple[bool, ...]:
    """Of each trunk layer whether it is recurrent: by list, or all but every n-th (default 4)."""
    blocks = metadata.int(f"{arch}.block_count")
    predicting = metadata.int(f"{arch}.nextn_predict_layers", 0)
    if not 0 <= predicting < max(1, blocks):
        raise metadata.wrong(f"{arch}.nextn_predict_layers", f"less than the {blocks} blocks")
    key = f"{arch}.attention.recurrent_layers"
    if metadata.has(key):
        flags = metadata.values[key]
        if isinstance(flags, bool):
            return (flags,) * (blocks - predicting)
        listed = getattr(flags, "tolist", lambda: flags)()
        if not isinstance(listed, list) or len(listed) != blocks:
            raise metadata.wrong(key, f"true or false for each of the {blocks} blocks")
        return tuple(bool(flag) for flag in listed[: blocks - predicting])
    interval = metadata.int(f"{arch}.full_attention_interval", 4)
    if interval < 1:
        raise metadata.wrong(f"{arch}.full_attention_interval", "at least 1")
    return tuple((layer + 1) % interval != 0 for layer in range(blocks - predicting))


def _kv_heads(metadata: TypedMetadata, arch: str, recurrent: tuple[bool, ...], heads: int) -> int:
    """Of every attention layer; a file may list them by layer, with any value for the others."""
    key = f"{arch}.attention.head_count_kv"
    listed = metadata.per_layer_ints(key, metadata.int(f"{arch}.block_count"))
    counts = {count for count, skip in zip(listed, recurrent, strict=False) if not skip} or {heads}
    if len(counts) > 1 or min(counts) < 1 or heads % min(counts):
        raise metadata.wrong(key, f"one divisor of the {heads} heads for all attention layers")
    return min(counts)


def _delta_config(metadata: TypedMetadata, arch: str) -> DeltaConfig:
    sizes = {
        name: metadata.int(f"{arch}.ssm.{name}")
        for name in ("group_count", "time_step_rank", "state_size", "inner_size", "conv_kernel")
    }
    for name, value in sizes.items():
        least = 2 if name == "conv_kernel" else 1
        if value < least:
            raise metadata.wrong(f"{arch}.ssm.{name}", f"at least {least}")
    key_heads, value_heads = sizes["group_count"], sizes["time_step_rank"]
    if value_heads % key_heads:
        raise metadata.wrong(
            f"{arch}.ssm.time_step_rank", f"a multiple of the {key_heads} key heads"
        )
    if sizes["inner_size"] % value_heads:
        raise metadata.wrong(
            f"{arch}.ssm.inner_size", f"a multiple of the {value_heads} value heads"
        )
    return DeltaConfig(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=sizes["state_size"],
        value_dim=sizes["inner_size"] // value_heads,
        kernel=sizes["conv_kernel"],
    )


def _moe_config(metadata: TypedMetadata, arch: str) -> MoeConfig:
    """Widths that a file leaves out follow from feed_forward_length, as llama.cpp has it."""
    experts, top_k = metadata.int(f"{arch}.expert_count"), metadata.int(f"{arch}.expert_used_count")
    if not 1 <= top_k <= experts:
        raise metadata.wrong(f"{arch}.expert_used_count", f"1 to the {experts} experts")
    metadata.expect_int(f"{arch}.expert_gating_func", (0, 1), 1)  # the softmax
    if metadata.float(f"{arch}.expert_weights_scale", 1.0) not in (0.0, 1.0):
        raise metadata.wrong(f"{arch}.expert_weights_scale", "1 or absent")
    inner = metadata.int(f"{arch}.expert_feed_forward_length", 0)
    shared = metadata.int(f"{arch}.expert_shared_feed_forward_length", 0)
    if not (inner and shared):
        dense = metadata.int(f"{arch}.feed_forward_length")
        inner, shared = inner or dense // top_k, shared or dense
    if min(inner, shared) < 1:
        raise metadata.wrong(f"{arch}.expert_feed_forward_length", "at least 1")
    return MoeConfig(experts=experts, top_k=top_k, inner=inner, shared_inner=shared)
