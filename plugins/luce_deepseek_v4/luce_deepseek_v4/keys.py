"""Reads of a file's `deepseek4.` keys, and the variants that they tell apart."""

from __future__ import annotations

import builtins
from collections.abc import Collection
from typing import Any

from luce_core.errors import ModelFileError
from luce_core.weights.typed_metadata import TypedMetadata

_PREFIX = "deepseek4."
# Parts of V4.1 and of DSpark drafts, of which DeepSeek V4 has none.
_FOREIGN_WORDS = ("engram", "dspark", "target_layers", "markov")
# Keys with which a model is another one unless they are zero or false. Exporters write them all.
_NEUTRAL = (
    "leading_dense_block_count",
    "expert_latent_length",
    "expert_chunk_feed_forward_length",
    "interleave_moe_layer_step",
    "moe_every_n_layers",
    "attention.kv_lora_rank",
    "attention.indexer.block_size",
    "attention.indexer.kpool",
    "attention.indexer.local_blocks",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "hyper_connection.low_rank",
    "hyper_connection.magnitude",
    "rope.scaling.yarn_log_multiplier",
    "kda.head_dim",
    "block_size",
)


class Keys:
    """The keys of one file, by their names without the architecture. Every read raises
    ModelFileError naming file and key."""

    def __init__(self, metadata: TypedMetadata) -> None:
        self._metadata = metadata

    def refuse_variants(self) -> None:
        """ModelFileError for the first key that only another model has."""
        for key in sorted(self._metadata.keys()):
            name = key.removeprefix(_PREFIX)
            if name != key and any(word in name for word in _FOREIGN_WORDS):
                raise ModelFileError(
                    self._metadata.path, key, "belongs to another model than DeepSeek V4"
                )
        for name in _NEUTRAL:
            if self._metadata.values.get(_PREFIX + name):
                raise self.wrong(name, "0 or absent")
        for name in ("scale", "value_scale", "output_scale"):
            if self.float(f"attention.{name}", 0.0) not in (0.0, 1.0):
                raise self.wrong(f"attention.{name}", "absent")

    def yarn_facts(self) -> dict[str, Any]:
        """The scaling of compressed layers, which leaves cos and sin as they are."""
        name = "rope.scaling"
        factor = self.float(f"{name}.factor", 0.0)
        if factor in (0.0, 1.0):
            return {}
        self._metadata.expect_str(f"{_PREFIX}{name}.type", ("yarn",))
        for word in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor"):
            if self.float(f"{name}.{word}", 1.0) != 1.0:
                raise self.wrong(f"{name}.{word}", "1 or absent")
        return {
            "scaling": "yarn",
            "factor": factor,
            "original_context": self.size(f"{name}.original_context_length"),
            "beta_fast": self.float(f"{name}.yarn_beta_fast", 32.0),
            "beta_slow": self.float(f"{name}.yarn_beta_slow", 1.0),
            "attention_factor": 1.0,
        }

    def limits(self, name: str, layers: builtins.int) -> tuple[builtins.float | None, ...]:
        """The clamp of each layer, from one number or one for each; 0 stands for none."""
        value = self._metadata.values.get(_PREFIX + name)
        if isinstance(value, builtins.float | builtins.int):
            found = (self.float(name),) * layers
        else:
            found = self._metadata.floats(_PREFIX + name)
        if len(found) < layers or min(found, default=0.0) < 0:
            raise self.wrong(name, f"one number or {layers}, none of them negative")
        return tuple(limit or None for limit in found[:layers])

    def size(self, name: str) -> builtins.int:
        value = self.int(name)
        if value < 1:
            raise self.wrong(name, "at least 1")
        return value

    def int(self, name: str, *default: builtins.int) -> builtins.int:
        return self._metadata.int(_PREFIX + name, *default)

    def float(self, name: str, *default: builtins.float) -> builtins.float:
        return self._metadata.float(_PREFIX + name, *default)

    def ints(self, name: str) -> tuple[builtins.int, ...]:
        return self._metadata.ints(_PREFIX + name)

    def per_layer_ints(self, name: str, count: builtins.int) -> tuple[builtins.int, ...]:
        return self._metadata.per_layer_ints(_PREFIX + name, count)

    def expect_int(
        self, name: str, accepted: Collection[builtins.int], *default: builtins.int
    ) -> None:
        self._metadata.expect_int(_PREFIX + name, accepted, *default)

    def expect_bool(self, name: str, accepted: Collection[bool]) -> None:
        self._metadata.expect_bool(_PREFIX + name, accepted)

    def has(self, name: str) -> bool:
        return self._metadata.has(_PREFIX + name)

    def wrong(self, name: str, accepted: str) -> ModelFileError:
        """The error for a key whose value is not accepted; the caller raises it."""
        return self._metadata.wrong(_PREFIX + name, accepted)
