"""Writes draft files: for models trained here, and for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from luce_core.weights.gguf_writer import write_gguf
from luce_core.weights.quant_types import QuantTensor
from luce_qwen_dflash2.draft.config import DraftConfig
from luce_qwen_dflash2.draft.naming import LLAMA_CPP, naming_of

Weights = Mapping[str, Tensor | QuantTensor]


def write_draft(
    path: Path | str,
    config: DraftConfig,
    weights: Weights,
    *,
    arch: str = LLAMA_CPP,
    extra: Mapping[str, object] | None = None,
) -> Path:
    """Write a draft of any of ARCHITECTURES and return its path.

    `weights` go by our names (`tensor_names` lists them) and are written as they are; `extra` is
    further metadata, such as the target's tokenizer. All layers must agree on `causal` unless it
    follows from their windows.
    """
    naming = naming_of(arch)
    tensors = {naming.first_name(name): weight for name, weight in weights.items()}
    inner = weights["blk.0.ffn_gate.weight"].shape[0]
    return write_gguf(path, arch, {**draft_metadata(config, inner, arch), **(extra or {})}, tensors)


def tensor_names(config: DraftConfig) -> dict[str, str]:
    """Our name of every tensor -> the name in z-lab's training code and checkpoints."""
    names = {
        "fc.weight": "fc.weight",
        "enc.output_norm.weight": "hidden_norm.weight",
        "output_norm.weight": "norm.weight",
    }
    if config.selector is not None:
        selector = "candidate_selector"
        names |= {
            "selector_hidden.weight": f"{selector}.hidden_projection.weight",
            "selector_predecessor.weight": f"{selector}.predecessor_codebook.weight",
            "selector_successor.weight": f"{selector}.successor_codebook.weight",
        }
    layer = {
        "attn_norm.weight": "input_layernorm.weight",
        "attn_q.weight": "self_attn.q_proj.weight",
        "attn_k.weight": "self_attn.k_proj.weight",
        "attn_v.weight": "self_attn.v_proj.weight",
        "attn_output.weight": "self_attn.o_proj.weight",
        "attn_q_norm.weight": "self_attn.q_norm.weight",
        "attn_k_norm.weight": "self_attn.k_norm.weight",
        "ffn_norm.weight": "post_attention_layernorm.weight",
        "ffn_gate.weight": "mlp.gate_proj.weight",
        "ffn_up.weight": "mlp.up_proj.weight",
        "ffn_down.weight": "mlp.down_proj.weight",
    }
    if config.conv is not None:
        layer |= {
            "attn_conv_base": "attention_conv.base_kernel",
            "attn_conv_proj.weight": "attention_conv.kernel_projection.weight",
            "ffn_conv_base": "mlp_conv.base_kernel",
            "ffn_conv_proj.weight": "mlp_conv.kernel_projection.weight",
        }
    for index in range(config.layers):
        names |= {f"blk.{index}.{ours}": f"layers.{index}.{other}" for ours, other in layer.items()}
    return names


def draft_metadata(config: DraftConfig, inner: int, arch: str = LLAMA_CPP) -> dict[str, object]:
    """The keys of a draft whose feed-forward layers have the width `inner`."""
    naming = naming_of(arch)
    values: dict[str, object] = {
        "block_count": config.layers,
        "context_length": config.context,
        "embedding_length": config.width,
        "feed_forward_length": inner,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.eps,
        "rope.freq_base": config.rope["theta"],
    }
    if any(config.windows):
        values["attention.sliding_window"] = max(config.windows)
        values["attention.sliding_window_pattern"] = np.array(config.windows) > 0
    if config.causal != tuple(window > 0 for window in config.windows):
        assert len(set(config.causal)) == 1, config.causal
        values["attention.causal"] = config.causal[0]
    layers = [layer + naming.first_layer for layer in config.target_layers]
    metadata = {naming.key(name): value for name, value in values.items()}
    metadata |= {
        naming.block_size: config.block_size,
        naming.target_layers: np.array(layers, np.int32),
        naming.mask_token: config.mask_token,
    }
    if config.conv is not None and config.selector is not None:
        metadata |= {
            naming.conv_taps: config.conv.taps,
            naming.conv_group: config.conv.group,
            naming.selector_rank: config.selector.rank,
            naming.selector_top_k: config.selector.top_k,
        }
    return metadata
