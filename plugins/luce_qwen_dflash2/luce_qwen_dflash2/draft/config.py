"""The keys of a draft file, read once and compared with its target. What this code does not do is
refused by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from luce_core.errors import ModelFileError
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.typed_metadata import TypedMetadata
from luce_qwen_dflash2.draft.naming import ARCHITECTURES, Naming, naming_of

MAX_BLOCK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetShape:
    """What a draft must fit: layers of the trunk, width of its residual stream, rows of its
    embedding and head."""

    layers: int
    width: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class ConvShape:
    """DFlash2's dynamic convolution: taps, and channels that share a kernel's change."""

    taps: int
    group: int


@dataclass(frozen=True, slots=True)
class SelectorShape:
    """DFlash2's candidate selector: width of the codebooks, candidates of a row."""

    rank: int
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """Sizes and constants of one draft.

    `block_size` rows are trained: the anchor and block_size - 1 drafts. `target_layers` counts the
    target's layers from 0; features are the residual stream after each. `windows` has 0 for a
    layer that sees everything, `causal` says which layers' rows see none behind themselves.
    `conv` and `selector` are None for a DFlash draft, both are there for DFlash2. `rope` holds the
    facts of the rope op.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    eps: float
    rope: Mapping[str, Any]
    block_size: int
    mask_token: int
    target_layers: tuple[int, ...]
    windows: tuple[int, ...]
    causal: tuple[bool, ...]
    conv: ConvShape | None
    selector: SelectorShape | None


def read_config(gguf: GgufFile, target: TargetShape) -> DraftConfig:
    """The config of a draft file for this target; ModelFileError names the key at fault."""
    metadata = gguf.metadata
    naming = naming_of(metadata.expect_str("general.architecture", ARCHITECTURES))
    _refuse_other_drafts(gguf, naming)
    key = naming.key
    layers = metadata.int(key("block_count"))
    width = metadata.int(key("embedding_length"))
    heads = metadata.int(key("attention.head_count"))
    if min(layers, heads) < 1:
        raise metadata.wrong(key("block_count"), "at least 1, as must the head count be")
    if width != target.width:
        raise metadata.wrong(key("embedding_length"), f"the target's width {target.width}")
    per_layer = metadata.per_layer_ints(key("attention.head_count_kv"), layers)
    if len(set(per_layer)) != 1 or per_layer[0] < 1 or heads % per_layer[0]:
        raise metadata.wrong(key("attention.head_count_kv"), f"one divisor of the {heads} heads")
    head_dim = metadata.int(key("attention.key_length"))
    if head_dim < 2 or head_dim % 2:
        raise metadata.wrong(key("attention.key_length"), "even and at least 2")
    metadata.expect_int(key("attention.value_length"), (head_dim,), head_dim)
    vocab = target.vocab_size
    if metadata.int(key("vocab_size"), vocab) != vocab:
        raise metadata.wrong(key("vocab_size"), f"the target's {vocab} tokens")
    mask_token = metadata.int(naming.mask_token)
    if not 0 <= mask_token < vocab:
        raise metadata.wrong(naming.mask_token, f"a token of the target, 0 to {vocab - 1}")
    block_size = metadata.int(naming.block_size)
    if not 2 <= block_size <= MAX_BLOCK:
        raise metadata.wrong(naming.block_size, f"2 to {MAX_BLOCK}")
    for name in ("logit_scale", "embedding_scale"):
        if metadata.float(key(name), 1.0) not in (0.0, 1.0):
            raise metadata.wrong(key(name), "1 or absent")
    if metadata.float(key("final_logit_softcapping"), 0.0) != 0.0:
        raise metadata.wrong(key("final_logit_softcapping"), "0 or absent")
    windows = _windows(metadata, naming, layers)
    selector = _selector(gguf, naming, vocab)
    return DraftConfig(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=per_layer[0],
        head_dim=head_dim,
        context=metadata.int(key("context_length")),
        eps=metadata.float(key("attention.layer_norm_rms_epsilon")),
        rope=_rope(metadata, naming, head_dim),
        block_size=block_size,
        mask_token=mask_token,
        target_layers=_target_layers(metadata, naming, target),
        windows=windows,
        causal=_causal(metadata, naming, windows),
        conv=None if selector is None else _conv(metadata, naming, width),
        selector=selector,
    )


def _refuse_other_drafts(gguf: GgufFile, naming: Naming) -> None:
    """Files of these architectures that hold another method would load and draft badly."""
    for key in gguf.metadata.values:
        if ".hyper_connection" in key or ".dspark." in key:
            raise gguf.metadata.wrong(key, "absent: DSpark drafts are not supported")
        if ".domino." in key:
            raise gguf.metadata.wrong(key, "absent: Domino drafts are not supported")
    for name in gguf.tensors:
        if "markov" in name or "conf_proj" in name:
            raise ModelFileError(gguf.path, name, "this is a DSpark draft, which is not supported")
        if "domino" in name:
            raise ModelFileError(gguf.path, name, "this is a Domino draft, which is not supported")


def _target_layers(metadata: TypedMetadata, naming: Naming, target: TargetShape) -> tuple[int, ...]:
    stated = metadata.ints(naming.target_layers)
    layers = tuple(layer - naming.first_layer for layer in stated)
    inside = all(0 <= layer < target.layers for layer in layers)
    if not layers or not inside or list(layers) != sorted(set(layers)):
        first = naming.first_layer
        raise metadata.wrong(
            naming.target_layers,
            f"ascending layers of the target, {first} to {target.layers - 1 + first}",
        )
    for name, count in (("n_target_layers", 1), ("n_target_features", target.width)):
        key = naming.key(f"dflash.{name}")
        metadata.expect_int(key, (len(layers) * count,), 0)
    return layers


def _windows(metadata: TypedMetadata, naming: Naming, layers: int) -> tuple[int, ...]:
    """The window of each layer, 0 for none; without a pattern all layers have it."""
    size, pattern = (
        naming.key(f"attention.{name}") for name in ("sliding_window", "sliding_window_pattern")
    )
    sliding = metadata.bools(pattern, (metadata.int(size, 0) > 0,) * layers)
    if len(sliding) != layers:
        raise metadata.wrong(pattern, f"{layers} values, one per layer")
    if any(sliding) and metadata.int(size) < 1:
        raise metadata.wrong(size, "at least 1 where layers slide")
    return tuple(metadata.int(size) if slides else 0 for slides in sliding)


def _causal(metadata: TypedMetadata, naming: Naming, windows: tuple[int, ...]) -> tuple[bool, ...]:
    """What the file says of all layers; if nothing, sliding layers are causal and others not
    (z-lab/dflash, `Qwen3DFlashAttention`)."""
    stated = metadata.bool(naming.key("attention.causal"), None)
    return tuple(window > 0 if stated is None else stated for window in windows)


def _selector(gguf: GgufFile, naming: Naming, vocab: int) -> SelectorShape | None:
    """The selector of a DFlash2 file; a version, where one is stated, must agree."""
    metadata = gguf.metadata
    name = naming.tensor("selector_hidden.weight", gguf.tensors)
    top_k = metadata.int(naming.selector_top_k, 0)
    is_second = name in gguf.tensors or top_k > 0
    for key in (naming.key("version"), naming.key("dflash.version")):
        metadata.expect_int(key, (2 if is_second else 1,), 0)
    if not is_second:
        return None
    top_k, rank = metadata.int(naming.selector_top_k), metadata.int(naming.selector_rank)
    if not 1 <= top_k <= min(vocab, 256):
        raise metadata.wrong(naming.selector_top_k, f"1 to {min(vocab, 256)}")
    if rank < 1:
        raise metadata.wrong(naming.selector_rank, "at least 1")
    return SelectorShape(rank, top_k)


def _conv(metadata: TypedMetadata, naming: Naming, width: int) -> ConvShape:
    taps, group = metadata.int(naming.conv_taps), metadata.int(naming.conv_group)
    if not 1 <= taps <= MAX_BLOCK:
        raise metadata.wrong(naming.conv_taps, f"1 to {MAX_BLOCK}")
    if group < 1 or width % group:
        raise metadata.wrong(naming.conv_group, f"a divisor of the width {width}")
    return ConvShape(taps, group)


def _rope(metadata: TypedMetadata, naming: Naming, head_dim: int) -> dict[str, Any]:
    key = naming.key
    metadata.expect_int(key("rope.dimension_count"), (head_dim,), head_dim)
    metadata.expect_str(key("rope.scaling.type"), ("none",), "none")
    # Sections of a target with M-RoPE: all in the first one is plain rope.
    sections = metadata.ints(key("rope.dimension_sections"), (head_dim // 2,))
    if sections[:1] != (head_dim // 2,) or any(sections[1:]):
        raise metadata.wrong(key("rope.dimension_sections"), f"{head_dim // 2} and zeros")
    theta = metadata.float(key("rope.freq_base"))
    if theta <= 0:
        raise metadata.wrong(key("rope.freq_base"), "positive")
    return {"rotary_dim": head_dim, "interleaved": False, "theta": theta}
