"""The keys of a dense GGUF model, read once. What this code does not do is refused by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from luce_core.weights.rope_keys import rope_facts
from luce_core.weights.typed_metadata import TypedMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of one model. `rope` holds the facts of the rope op."""

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: tuple[int, ...]
    head_dim: int
    context: int
    eps: float
    rope: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_head_norms(self) -> bool:
        """Qwen3 normalises every query and key head."""
        return self.architecture == "qwen3"


def read_config(metadata: TypedMetadata) -> ModelConfig:
    """The config of a file; ModelFileError names a key that is missing or means something else."""
    arch = metadata.str("general.architecture")

    def key(name: str) -> str:
        return f"{arch}.{name}"

    layers = metadata.int(key("block_count"))
    width = metadata.int(key("embedding_length"))
    heads = metadata.int(key("attention.head_count"))
    if min(layers, width, heads) < 1:
        raise metadata.wrong(key("attention.head_count"), "at least 1, as must the other sizes be")
    kv_heads = metadata.per_layer_ints(key("attention.head_count_kv"), layers, (heads,) * layers)
    if any(count < 1 or heads % count for count in kv_heads):
        raise metadata.wrong(key("attention.head_count_kv"), f"divisors of the {heads} heads")
    head_dim = metadata.int(key("attention.key_length"), width // heads)
    metadata.expect_int(key("attention.value_length"), (head_dim,), head_dim)
    metadata.expect_int(key("expert_count"), (0,), 0)
    metadata.expect_int(key("attention.sliding_window"), (0,), 0)
    for name in ("logit_scale", "residual_scale", "embedding_scale"):
        if metadata.float(key(name), 1.0) not in (0.0, 1.0):
            raise metadata.wrong(key(name), "1 or absent")
    if metadata.float(key("attention.scale"), 0.0) not in (0.0, head_dim**-0.5):
        raise metadata.wrong(key("attention.scale"), "1 / sqrt(head size) or absent")
    # Files of arch llama hold q and k permuted for interleaved pairs.
    rope = rope_facts(metadata, head_dim, interleaved=arch == "llama")
    return ModelConfig(
        architecture=arch,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context=metadata.int(key("context_length")),
        eps=metadata.float(key("attention.layer_norm_rms_epsilon")),
        rope=rope,
    )
