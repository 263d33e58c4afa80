"""The rope keys of a model file, as the facts that the op `rope` takes."""

from __future__ import annotations

from typing import Any

from luce_core.weights.typed_metadata import TypedMetadata


def rope_facts(metadata: TypedMetadata, head_dim: int, *, interleaved: bool) -> dict[str, Any]:
    """Facts for `bind("rope", ...)`; ModelFileError names a key that means something else."""
    arch = metadata.str("general.architecture")

    def key(name: str) -> str:
        return f"{arch}.rope.{name}"

    facts: dict[str, Any] = {
        "rotary_dim": metadata.int(key("dimension_count"), head_dim),
        "interleaved": interleaved,
        "theta": metadata.float(key("freq_base"), 10_000.0),
    }
    if facts["rotary_dim"] > head_dim:
        raise metadata.wrong(key("dimension_count"), f"at most the head size {head_dim}")
    scaling = metadata.expect_str(key("scaling.type"), ("none", "linear", "yarn"), "none")
    factor = metadata.float(key("scaling.factor"), metadata.float(key("scale_linear"), 0.0))
    if scaling == "none" and not metadata.has(key("scaling.type")) and factor not in (0.0, 1.0):
        scaling = "linear"  # files from before the type key state the factor alone
    if scaling == "none" or factor in (0.0, 1.0):
        return facts
    facts |= {"scaling": scaling, "factor": factor}
    if scaling == "yarn":
        facts["original_context"] = metadata.int(key("scaling.original_context_length"))
        facts["beta_fast"] = metadata.float(key("scaling.yarn_beta_fast"), 32.0)
        facts["beta_slow"] = metadata.float(key("scaling.yarn_beta_slow"), 1.0)
        if metadata.float(key("scaling.yarn_ext_factor"), 1.0) != 1.0:
            raise metadata.wrong(key("scaling.yarn_ext_factor"), "1 or absent")
        if metadata.float(key("scaling.attn_factor"), 1.0) != 1.0:
            raise metadata.wrong(key("scaling.attn_factor"), "1 or absent")
    return facts
