"""Writes transformers' DeepSeek V4 models as GGUF, as llama.cpp's converter does: for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from luce_core.weights.gguf_writer import write_gguf
from luce_core.weights.quant_types import QuantTensor

_ROOT_NAMES = MappingProxyType(
    {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
        "model.hc_head.hc_fn": "output_hc_fn.weight",
        "model.hc_head.hc_base": "output_hc_base.weight",
        "model.hc_head.hc_scale": "output_hc_scale.weight",
    }
)
_COMPRESSOR = MappingProxyType(
    {
        "kv_proj.weight": "kv.weight",
        "gate_proj.weight": "gate.weight",
        "position_bias": "ape.weight",
        "kv_norm.weight": "norm.weight",
    }
)
_LAYER_NAMES = MappingProxyType(
    {
        "input_layernorm.weight": "attn_norm.weight",
        "post_attention_layernorm.weight": "ffn_norm.weight",
        "self_attn.q_a_proj.weight": "attn_q_a.weight",
        "self_attn.q_a_norm.weight": "attn_q_a_norm.weight",
        "self_attn.q_b_proj.weight": "attn_q_b.weight",
        "self_attn.kv_proj.weight": "attn_kv.weight",
        "self_attn.kv_norm.weight": "attn_kv_a_norm.weight",
        "self_attn.o_a_proj.weight": "attn_output_a.weight",
        "self_attn.o_b_proj.weight": "attn_output_b.weight",
        "self_attn.sinks": "attn_sinks.weight",
        "self_attn.compressor.indexer.q_b_proj.weight": "indexer.attn_q_b.weight",
        "self_attn.compressor.indexer.scorer.weights_proj.weight": "indexer.proj.weight",
        "mlp.gate.weight": "ffn_gate_inp.weight",
        "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
        "mlp.gate.tid2eid": "ffn_gate_tid2eid.weight",
        "mlp.experts.down_proj": "ffn_down_exps.weight",
        "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
        "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
        "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
        **{
            f"{theirs}.{part}": f"{ours}_{part}.weight"
            for theirs, ours in (("attn_hc", "hc_attn"), ("ffn_hc", "hc_ffn"))
            for part in ("fn", "base", "scale")
        },
        **{f"self_attn.compressor.{a}": f"attn_compressor_{b}" for a, b in _COMPRESSOR.items()},
        **{
            f"self_attn.compressor.indexer.{a}": f"indexer_compressor_{b}"
            for a, b in _COMPRESSOR.items()
        },
    }
)
_BOTH_EXPERTS = "mlp.experts.gate_up_proj"

# Makes a weight [..., N, K] in quant blocks from its values.
MakeWeight = Callable[[Tensor], QuantTensor]


def write_transformers_model(
    path: Path,
    model: Any,
    *,
    quantised: Mapping[str, MakeWeight] = MappingProxyType({}),
    keys: Mapping[str, object] = MappingProxyType({}),
) -> Path:
    """The model as converters write it; `model` has transformers' `config` and `state_dict`.

    `quantised` maps roles (`attn_q_a`) to makers of weights: the file gets what they make, and the
    transformers model the values that it stands for. `keys` replace those of the file.
    """
    tensors: dict[str, Tensor | QuantTensor] = {}
    for name, weight in model.state_dict().items():
        for target, value in _file_tensors(name, weight):
            role = target.rpartition(".")[0].rpartition(".")[2]
            if role in quantised:
                made = quantised[role](value.detach().float())
                value.copy_(made.dequantize())
                tensors[target] = made
            else:
                kind = torch.int32 if role == "ffn_gate_tid2eid" else torch.float32
                tensors[target] = value.detach().to(kind).contiguous()
    values = {**_keys(model.config), **keys}
    return write_gguf(path, "deepseek4", {f"deepseek4.{k}": v for k, v in values.items()}, tensors)


def _file_tensors(name: str, weight: Tensor) -> list[tuple[str, Tensor]]:
    """The file's tensors, as views of the model's."""
    if name in _ROOT_NAMES:
        return [(_ROOT_NAMES[name], weight)]
    _, _, index, rest = name.split(".", 3)
    if rest == _BOTH_EXPERTS:
        gate, up = weight.chunk(2, 1)
        return [
            (f"blk.{index}.ffn_gate_exps.weight", gate),
            (f"blk.{index}.ffn_up_exps.weight", up),
        ]
    return [(f"blk.{index}.{_LAYER_NAMES[rest]}", weight)]


def _keys(config: Any) -> dict[str, object]:
    rope = config.rope_parameters["compress"]
    rates = {**config.compress_rates, "sliding_attention": 0}
    layers = config.num_hidden_layers
    keys: dict[str, object] = {
        "block_count": layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": 1,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.output_lora_rank": config.o_lora_rank,
        "attention.output_group_count": config.o_groups,
        "attention.sliding_window": config.sliding_window,
        "attention.compress_ratios": [rates[kind] for kind in config.layer_types],
        "attention.compress_rope_freq_base": float(config.compress_rope_theta),
        "attention.indexer.head_count": config.index_n_heads,
        "attention.indexer.key_length": config.index_head_dim,
        "attention.indexer.top_k": config.index_topk,
        "rope.freq_base": float(config.rope_theta),
        "rope.dimension_count": config.qk_rope_head_dim,
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_count": 1,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_weights_norm": True,
        "expert_gating_func": 4,
        "swiglu_clamp_exp": [config.swiglu_limit] * layers,
        "hash_layer_count": config.mlp_layer_types.count("hash_moe"),
        "hyper_connection.count": config.hc_mult,
        "hyper_connection.sinkhorn_iterations": config.hc_sinkhorn_iters,
        "hyper_connection.epsilon": config.hc_eps,
    }
    if rope["rope_type"] == "yarn":
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(rope["factor"]),
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": float(rope["beta_fast"]),
            "rope.scaling.yarn_beta_slow": float(rope["beta_slow"]),
        }
    return keys
