"""For tests: transformers' Qwen3.5 models as GGUF, as llama.cpp's converter writes them, and a
draft that takes in features of any origin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from luce_core.weights.gguf_writer import write_gguf
from luce_core.weights.quant_types import QuantTensor
from luce_qwen_dflash2.draft.backlog import Kept
from luce_qwen_dflash2.draft.draft import Draft

_ROOT_NAMES = MappingProxyType(
    {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
)
_LAYER_NAMES = MappingProxyType(
    {
        "input_layernorm.weight": "attn_norm.weight",
        "post_attention_layernorm.weight": "post_attention_norm.weight",
        "self_attn.q_proj.weight": "attn_q.weight",
        "self_attn.k_proj.weight": "attn_k.weight",
        "self_attn.v_proj.weight": "attn_v.weight",
        "self_attn.o_proj.weight": "attn_output.weight",
        "self_attn.q_norm.weight": "attn_q_norm.weight",
        "self_attn.k_norm.weight": "attn_k_norm.weight",
        "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
        "linear_attn.in_proj_z.weight": "attn_gate.weight",
        "linear_attn.in_proj_b.weight": "ssm_beta.weight",
        "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
        "linear_attn.A_log": "ssm_a",
        "linear_attn.dt_bias": "ssm_dt.bias",
        "linear_attn.conv1d.weight": "ssm_conv1d.weight",
        "linear_attn.norm.weight": "ssm_norm.weight",
        "linear_attn.out_proj.weight": "ssm_out.weight",
        "mlp.gate_proj.weight": "ffn_gate.weight",
        "mlp.up_proj.weight": "ffn_up.weight",
        "mlp.down_proj.weight": "ffn_down.weight",
        "mlp.gate.weight": "ffn_gate_inp.weight",
        "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "mlp.experts.down_proj": "ffn_down_exps.weight",
        "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
        "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
        "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
        "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    }
)

# Makes a weight [N, K] in quant blocks.
MakeWeight = Callable[[int, int], QuantTensor]
FileTensors = dict[str, Tensor | QuantTensor]


def write_transformers_model(
    path: Path,
    model: Any,
    *,
    quantised: Mapping[str, MakeWeight] = MappingProxyType({}),
) -> Path:
    """The model as converters write it; `model` has transformers' `config` and `state_dict`.

    `quantised` maps roles (`attn_qkv`) to makers of weights: such a matrix is made, and the
    transformers model gets the values that it stands for.
    """
    config, order = model.config, _HeadOrder(model.config)
    tensors: FileTensors = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        target = _file_name(name)
        value = order.to_file(target, weight.detach().clone().float())
        role = target.removesuffix(".weight").rpartition(".")[2]
        if role in quantised:
            made = quantised[role](*value.shape)
            weight.copy_(order.from_file(target, made.dequantize()))
            tensors[target] = made
        elif role == "ffn_gate_up_exps":
            for part, half in zip(("gate", "up"), value.chunk(2, 1), strict=True):
                tensors[target.replace("gate_up", part)] = half.contiguous()
        else:
            tensors[target] = _file_value(name, value)
    arch = "qwen35moe" if hasattr(config, "num_experts") else "qwen35"
    keys = {f"{arch}.{key}": value for key, value in _keys(config).items()}
    return write_gguf(path, arch, keys, tensors)


def _file_name(name: str) -> str:
    if name in _ROOT_NAMES:
        return _ROOT_NAMES[name]
    _, _, index, rest = name.split(".", 3)
    return f"blk.{index}.{_LAYER_NAMES[rest]}"


def _file_value(name: str, value: Tensor) -> Tensor:
    if name.endswith("A_log"):
        return -value.exp()
    if name.endswith("shared_expert_gate.weight"):
        return value.squeeze(0)
    # The norms of attention and of layers are stored around zero, that of the delta rule is not.
    is_offset = name.endswith("norm.weight") and "linear_attn" not in name
    return value + 1 if is_offset else value


class _HeadOrder:
    """Value heads lie as [key heads, values of each] in transformers' weights and as [values of
    each, key heads] in a file's."""

    def __init__(self, config: Any) -> None:
        self._keys = config.linear_num_key_heads
        self._each = config.linear_num_value_heads // self._keys
        self._dim = config.linear_value_head_dim
        self._qk = 2 * self._keys * config.linear_key_head_dim

    def to_file(self, name: str, value: Tensor) -> Tensor:
        return self._placed(name, value, (self._keys, self._each))

    def from_file(self, name: str, value: Tensor) -> Tensor:
        return self._placed(name, value, (self._each, self._keys))

    def _placed(self, name: str, value: Tensor, order: tuple[int, int]) -> Tensor:
        role = name.split(".", 2)[-1]
        if role in ("attn_qkv.weight", "ssm_conv1d.weight"):
            value = value.flatten(1)  # the convolution's has an axis of size 1
            qk, v = value[: self._qk], value[self._qk :]
            return torch.cat((qk, _swapped(v, order, self._dim)))
        if role == "attn_gate.weight":
            return _swapped(value, order, self._dim)
        if role in ("ssm_alpha.weight", "ssm_beta.weight", "ssm_a", "ssm_dt.bias"):
            return _swapped(value, order, 1)
        if role == "ssm_out.weight":
            return _swapped(value.t(), order, self._dim).t().contiguous()
        return value


def _swapped(value: Tensor, order: tuple[int, int], dim: int) -> Tensor:
    heads = value.reshape(*order, dim, *value.shape[1:])
    return heads.transpose(0, 1).reshape(value.shape).contiguous()


def _keys(config: Any) -> dict[str, object]:
    rope = config.rope_parameters
    keys: dict[str, object] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": rope["rope_theta"],
        "rope.dimension_count": int(config.head_dim * rope["partial_rotary_factor"]),
        "rope.dimension_sections": [*rope["mrope_section"], 0],
        "full_attention_interval": config.layer_types.index("full_attention") + 1,
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
    }
    if not hasattr(config, "num_experts"):
        return keys | {"feed_forward_length": config.intermediate_size}
    return keys | {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
    }


def inject(draft: Draft, features: Tensor, kept: Sequence[Kept]) -> None:
    """A step whose rows left `features` [T, F], of which those of `kept` stay."""
    rows = len(features)
    draft.open(rows)
    draft.backlog.rows[draft.backlog.places.tensor[:rows]] = features
    draft.keep(kept)
