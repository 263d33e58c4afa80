"""Drafts of any size with random weights, for tests and benchmarks without downloads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from luce_core.weights.synthetic import TensorSpec, write_random
from luce_qwen_dflash2.draft.config import DraftConfig
from luce_qwen_dflash2.draft.naming import LLAMA_CPP
from luce_qwen_dflash2.draft.write import draft_metadata


def write_random_draft(
    path: Path | str,
    config: DraftConfig,
    *,
    vocab_size: int,
    inner: int,
    qtype: str = "Q8_0",
    types: Mapping[str, str] = MappingProxyType({}),
    seed: int = 0,
) -> Path:
    """Write a draft of architecture `dflash` and return its path. It proposes at a trained draft's
    cost, and nothing of use. `inner` is the width of its feed-forward layers; types are chosen as
    `write_random` does, but the convolutions' base is F32 as in published files."""
    metadata = {"general.architecture": LLAMA_CPP, **draft_metadata(config, inner)}
    specs = draft_tensors(config, vocab_size=vocab_size, inner=inner)
    return write_random(path, metadata, specs, qtype=qtype, types=types, seed=seed)


def draft_tensors(config: DraftConfig, *, vocab_size: int, inner: int) -> list[TensorSpec]:
    """The tensors of such a file."""
    width, dim = config.width, config.head_dim
    q, kv = config.heads * dim, config.kv_heads * dim
    specs = [
        TensorSpec("fc.weight", (width, len(config.target_layers) * width)),
        TensorSpec("enc.output_norm.weight", (width,), "norm"),
        TensorSpec("output_norm.weight", (width,), "norm"),
    ]
    if config.selector is not None:
        rank = config.selector.rank
        specs += [
            TensorSpec("selector_hidden.weight", (rank, width)),
            TensorSpec("selector_predecessor.weight", (vocab_size, rank)),
            TensorSpec("selector_successor.weight", (vocab_size, rank)),
        ]
    for layer in range(config.layers):
        block = f"blk.{layer}"
        specs += [
            TensorSpec(f"{block}.attn_norm.weight", (width,), "norm"),
            TensorSpec(f"{block}.attn_q.weight", (q, width)),
            TensorSpec(f"{block}.attn_k.weight", (kv, width)),
            TensorSpec(f"{block}.attn_v.weight", (kv, width)),
            TensorSpec(f"{block}.attn_output.weight", (width, q)),
            TensorSpec(f"{block}.attn_q_norm.weight", (dim,), "norm"),
            TensorSpec(f"{block}.attn_k_norm.weight", (dim,), "norm"),
            TensorSpec(f"{block}.ffn_norm.weight", (width,), "norm"),
            TensorSpec(f"{block}.ffn_gate.weight", (inner, width)),
            TensorSpec(f"{block}.ffn_up.weight", (inner, width)),
            TensorSpec(f"{block}.ffn_down.weight", (width, inner)),
        ]
        if config.conv is not None:
            taps, groups = config.conv.taps, width // config.conv.group
            for part in ("attn", "ffn"):
                base, changes = (2, taps, width), (2 * taps * groups, width)
                specs += [
                    TensorSpec(f"{block}.{part}_conv_base", base, "norm", "F32"),
                    TensorSpec(f"{block}.{part}_conv_proj.weight", changes),
                ]
    return specs
