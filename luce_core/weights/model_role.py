"""Is this GGUF file the kind of model it was given as? If not, what is it, and where does it go?"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from luce_core.errors import ModelFileError
from luce_core.weights.typed_metadata import TypedMetadata

Role = Literal["model", "draft", "any"]

# `general.type` values and architectures that are complete files, but no language model.
_TYPES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "mmproj": ("an image or audio projector", "give the language model it belongs to"),
        "adapter": ("an adapter (LoRA)", "merge it into its base model and give the result"),
        "imatrix": ("an importance matrix", "it helps to quantise a model; give the model"),
    }
)
_ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {"clip": "mmproj", "mmproj": "mmproj", "imatrix": "imatrix", "controlvector": "adapter"}
)
DRAFT_ARCHITECTURES = ("dflash", "dflash-draft", "qwen35-dflash-draft", "gemma4-dflash-draft")


def check_role(path: object, metadata: TypedMetadata, tensor_count: int, role: Role) -> None:
    """Raise ModelFileError unless the file can serve as `role`; `any` skips the check."""
    if role == "any":
        return
    kind = metadata.str("general.type", "model")
    key = "general.type"
    if kind not in _TYPES and metadata.has("general.architecture"):
        kind = _ARCHITECTURES.get(metadata.str("general.architecture"), kind)
        key = "general.architecture"
    if kind in _TYPES:
        what, hint = _TYPES[kind]
        raise ModelFileError(path, key, f"this is {what}, not a language model: {hint}")
    architecture = metadata.str("general.architecture")
    if role == "model" and architecture in DRAFT_ARCHITECTURES:
        raise ModelFileError(
            path,
            "general.architecture",
            f"{architecture!r} is a draft, not a model: give it as --draft beside its target model",
        )
    if tensor_count == 0:
        raise ModelFileError(
            path, "tensor count", "this file holds a vocabulary only, no weights: give the model"
        )
