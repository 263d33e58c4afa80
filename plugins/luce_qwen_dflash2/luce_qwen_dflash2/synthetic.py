"""Hybrid models of any size with random weights, for tests and benchmarks without downloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from luce_core.weights.synthetic import TensorSpec, write_random
from luce_core.weights.synthetic_vocab import tokenizer_metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticHybrid:
    """A model of architecture qwen35; the defaults are tiny, `QWEN_27B` has the real sizes.

    With `experts` it is a qwen35moe, whose MLPs have the width `ff`, the shared one too. `qtype`
    is the type of the matrices, `types` overrides it by tensor name or role. The same fields give
    the same file.
    """

    layers: int = 4
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    rotary_dim: int = 8
    ff: int = 96
    key_heads: int = 2
    value_heads: int = 6
    state_dim: int = 16
    kernel: int = 4
    interval: int = 4
    experts: int = 0
    top_k: int = 2
    vocab: int = 320
    context: int = 512
    qtype: str = "F32"
    seed: int = 0
    tied: bool = False
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def arch(self) -> str:
        return "qwen35moe" if self.experts else "qwen35"


QWEN_27B = SyntheticHybrid(
    layers=64,
    width=5120,
    heads=24,
    kv_heads=4,
    head_dim=256,
    rotary_dim=64,
    ff=17408,
    key_heads=16,
    value_heads=48,
    state_dim=128,
    vocab=248320,
    context=262144,
    qtype="IQ4_XS",
)


def write_hybrid(path: Path | str, model: SyntheticHybrid) -> Path:
    """Write the model as one GGUF file and return its path; memory use is a few chunks."""
    return write_random(
        path,
        hybrid_metadata(model),
        hybrid_tensors(model),
        qtype=model.qtype,
        types=model.types,
        seed=model.seed,
    )


def hybrid_metadata(model: SyntheticHybrid) -> dict[str, object]:
    """All keys of the file, the tokenizer's included."""
    pairs = model.rotary_dim // 2
    sections = [-(-pairs // 3), -(-(pairs - 1) // 3), -(-(pairs - 2) // 3), 0]
    keys: dict[str, object] = {
        "block_count": model.layers,
        "context_length": model.context,
        "embedding_length": model.width,
        "feed_forward_length": model.ff,
        "attention.head_count": model.heads,
        "attention.head_count_kv": model.kv_heads,
        "attention.key_length": model.head_dim,
        "attention.value_length": model.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7,
        "rope.dimension_count": model.rotary_dim,
        "rope.dimension_sections": sections,
        "full_attention_interval": model.interval,
        "ssm.conv_kernel": model.kernel,
        "ssm.state_size": model.state_dim,
        "ssm.group_count": model.key_heads,
        "ssm.time_step_rank": model.value_heads,
        "ssm.inner_size": model.value_heads * model.state_dim,
        "vocab_size": model.vocab,
    }
    if model.experts:
        keys["expert_count"] = model.experts
        keys["expert_used_count"] = model.top_k
        keys["expert_feed_forward_length"] = model.ff
        keys["expert_shared_feed_forward_length"] = model.ff
    return {
        "general.architecture": model.arch,
        "general.type": "model",
        "general.name": f"synthetic {model.arch}",
        "general.quantization_version": 2,
        **{f"{model.arch}.{name}": value for name, value in keys.items()},
        **tokenizer_metadata(model.vocab, "qwen35"),
    }


def hybrid_tensors(model: SyntheticHybrid) -> list[TensorSpec]:
    """The tensors in the file's order."""
    width = model.width
    specs = [TensorSpec("token_embd.weight", (model.vocab, width))]
    for layer in range(model.layers):
        block = f"blk.{layer}"
        specs.append(TensorSpec(f"{block}.attn_norm.weight", (width,), "norm"))
        is_recurrent = (layer + 1) % model.interval != 0
        specs += _delta_tensors(model, block) if is_recurrent else _attention_tensors(model, block)
        specs.append(TensorSpec(f"{block}.post_attention_norm.weight", (width,), "norm"))
        specs += _feed_tensors(model, block)
    specs.append(TensorSpec("output_norm.weight", (width,), "norm"))
    if not model.tied:
        specs.append(TensorSpec("output.weight", (model.vocab, width)))
    return specs


def _attention_tensors(model: SyntheticHybrid, block: str) -> list[TensorSpec]:
    width, head = model.width, model.head_dim
    return [
        TensorSpec(f"{block}.attn_q.weight", (2 * model.heads * head, width)),
        TensorSpec(f"{block}.attn_k.weight", (model.kv_heads * head, width)),
        TensorSpec(f"{block}.attn_v.weight", (model.kv_heads * head, width)),
        TensorSpec(f"{block}.attn_output.weight", (width, model.heads * head)),
        TensorSpec(f"{block}.attn_q_norm.weight", (head,), "norm"),
        TensorSpec(f"{block}.attn_k_norm.weight", (head,), "norm"),
    ]


def _delta_tensors(model: SyntheticHybrid, block: str) -> list[TensorSpec]:
    width, heads = model.width, model.value_heads
    inner = heads * model.state_dim
    channels = 2 * model.key_heads * model.state_dim + inner
    return [
        TensorSpec(f"{block}.attn_qkv.weight", (channels, width)),
        TensorSpec(f"{block}.attn_gate.weight", (inner, width)),
        TensorSpec(f"{block}.ssm_alpha.weight", (heads, width)),
        TensorSpec(f"{block}.ssm_beta.weight", (heads, width)),
        TensorSpec(f"{block}.ssm_a", (heads,), "decay"),
        TensorSpec(f"{block}.ssm_dt.bias", (heads,), "bias"),
        TensorSpec(f"{block}.ssm_conv1d.weight", (channels, model.kernel), qtype="F32"),
        TensorSpec(f"{block}.ssm_norm.weight", (model.state_dim,), "norm"),
        TensorSpec(f"{block}.ssm_out.weight", (width, inner)),
    ]


def _feed_tensors(model: SyntheticHybrid, block: str) -> list[TensorSpec]:
    suffix = "_shexp" if model.experts else ""
    up, down = (model.ff, model.width), (model.width, model.ff)
    specs = [
        TensorSpec(f"{block}.ffn_gate{suffix}.weight", up),
        TensorSpec(f"{block}.ffn_up{suffix}.weight", up),
        TensorSpec(f"{block}.ffn_down{suffix}.weight", down),
    ]
    if model.experts:
        specs += [
            TensorSpec(f"{block}.ffn_gate_inp.weight", (model.experts, model.width), qtype="F32"),
            TensorSpec(f"{block}.ffn_gate_inp_shexp.weight", (model.width,)),
            TensorSpec(f"{block}.ffn_gate_exps.weight", (model.experts, *up)),
            TensorSpec(f"{block}.ffn_up_exps.weight", (model.experts, *up)),
            TensorSpec(f"{block}.ffn_down_exps.weight", (model.experts, *down)),
        ]
    return specs
