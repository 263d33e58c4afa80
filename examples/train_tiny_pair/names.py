"""GGUF names of both models' tensors, and how their values change on the way to the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from .target import TargetConfig

# Root tensors: name in the model, and what is added for the file.
TARGET_ROOT: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        "token_embd.weight": ("model.embed_tokens.weight", 0.0),
        "output_norm.weight": ("model.norm.weight", 1.0),
        "output.weight": ("lm_head.weight", 0.0),
    }
)
_DRAFT_ROOT = {
    "fc.weight": "fc.weight",
    "enc.output_norm.weight": "hidden_norm.weight",
    "output_norm.weight": "norm.weight",
    "selector_predecessor.weight": "candidate_selector.predecessor_codebook.weight",
    "selector_successor.weight": "candidate_selector.successor_codebook.weight",
    "selector_hidden.weight": "candidate_selector.hidden_projection.weight",
}
_DRAFT_LAYER = {
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
    "attn_conv_proj.weight": "attention_conv.kernel_projection.weight",
    "ffn_conv_proj.weight": "mlp_conv.kernel_projection.weight",
    "attn_conv_base": "attention_conv.base_kernel",
    "ffn_conv_base": "mlp_conv.base_kernel",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A value's way into the file and back."""

    write: Callable[[Tensor], Tensor]
    read: Callable[[Tensor], Tensor]


_SAME = Change(lambda x: x, lambda x: x)
_PLUS_ONE = Change(lambda x: x + 1, lambda x: x - 1)


def draft_names(layers: int) -> dict[str, str]:
    """GGUF name to the draft's parameter name; no value changes."""
    names = dict(_DRAFT_ROOT)
    for index in range(layers):
        for gguf, name in _DRAFT_LAYER.items():
            names[f"blk.{index}.{gguf}"] = f"layers.{index}.{name}"
    return names


def target_layer_names(config: TargetConfig, index: int) -> dict[str, tuple[str, Change]]:
    """GGUF name inside `blk.<index>.` to the parameter name in the layer and the change.

    Value heads are grouped by key head in the model and tiled in the file: head h of the file
    uses key head h % key_heads.
    """
    names = {
        "attn_norm.weight": ("input_layernorm.weight", _PLUS_ONE),
        "post_attention_norm.weight": ("post_attention_layernorm.weight", _PLUS_ONE),
        "ffn_gate.weight": ("mlp.gate_proj.weight", _SAME),
        "ffn_up.weight": ("mlp.up_proj.weight", _SAME),
        "ffn_down.weight": ("mlp.down_proj.weight", _SAME),
    }
    if config.is_full(index):
        return names | {
            "attn_q.weight": ("self_attn.q_proj.weight", _SAME),
            "attn_k.weight": ("self_attn.k_proj.weight", _SAME),
            "attn_v.weight": ("self_attn.v_proj.weight", _SAME),
            "attn_output.weight": ("self_attn.o_proj.weight", _SAME),
            "attn_q_norm.weight": ("self_attn.q_norm.weight", _PLUS_ONE),
            "attn_k_norm.weight": ("self_attn.k_norm.weight", _PLUS_ONE),
        }
    heads = torch.arange(config.value_heads).view(config.key_heads, -1).T.flatten()
    wide = heads[:, None] * config.delta_dim + torch.arange(config.delta_dim)
    keys = torch.arange(2 * config.key_heads * config.delta_dim)
    channels = torch.cat([keys, len(keys) + wide.flatten()])
    rows, columns, one = _rows(wide.flatten()), _columns(wide.flatten()), _rows(heads)
    decay = Change(lambda a_log: one.write(-a_log.exp()), lambda ssm_a: one.read((-ssm_a).log()))
    squeezed = Change(
        lambda x: _rows(channels).write(x[:, 0]), lambda x: _rows(channels).read(x)[:, None]
    )
    return names | {
        "attn_qkv.weight": ("linear_attn.in_proj_qkv.weight", _rows(channels)),
        "attn_gate.weight": ("linear_attn.in_proj_z.weight", rows),
        "ssm_beta.weight": ("linear_attn.in_proj_b.weight", one),
        "ssm_alpha.weight": ("linear_attn.in_proj_a.weight", one),
        "ssm_a": ("linear_attn.A_log", decay),
        "ssm_dt.bias": ("linear_attn.dt_bias", one),
        "ssm_conv1d.weight": ("linear_attn.conv1d.weight", squeezed),
        "ssm_norm.weight": ("linear_attn.norm.weight", _SAME),
        "ssm_out.weight": ("linear_attn.out_proj.weight", columns),
    }


def _rows(order: Tensor) -> Change:
    back = order.argsort()
    return Change(lambda x: x[order], lambda x: x[back])


def _columns(order: Tensor) -> Change:
    back = order.argsort()
    return Change(lambda x: x[:, order], lambda x: x[:, back])
