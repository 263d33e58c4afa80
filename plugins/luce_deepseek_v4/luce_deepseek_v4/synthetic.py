"""DeepSeek V4 models of any size with random weights, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from luce_core.weights.synthetic import TensorSpec, write_random
from luce_core.weights.synthetic_vocab import tokenizer_metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticDeepSeek:
    """A model of architecture deepseek4; the defaults are tiny, `V4_FLASH` has the real sizes.

    Types by class of tensor: `dense` for the matrices of attention and embeddings, `experts` for
    the routed experts, `shared` for the shared one, `mixing` for hyper-connections, `routers` for
    routers and the indexer's weights. `types` overrides them by tensor name or role
    (`ffn_down_exps`). `words` gives every token a text of its own, so that a client sees each one.
    The same fields give the same file.
    """

    ratios: tuple[int, ...] = (0, 4, 128, 4)
    width: int = 128
    heads: int = 4
    head_dim: int = 64
    rotary_dim: int = 16
    q_rank: int = 64
    groups: int = 2
    out_rank: int = 32
    window: int = 16
    index_heads: int = 8
    index_dim: int = 64
    index_top_k: int = 8
    experts: int = 8
    top_k: int = 2
    inner: int = 64
    hash_layers: int = 1
    streams: int = 4
    vocab: int = 320
    context: int = 1024
    original_context: int = 64
    dense: str = "Q8_0"
    experts_type: str = "MXFP4"
    shared: str = "Q8_0"
    mixing: str = "F32"
    routers: str = "F32"
    types: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    words: bool = False


V4_FLASH = SyntheticDeepSeek(
    ratios=(0, 0, *(4, 128) * 20, 4),
    width=4096,
    heads=64,
    head_dim=512,
    rotary_dim=64,
    q_rank=1024,
    groups=8,
    out_rank=1024,
    window=128,
    index_heads=64,
    index_dim=128,
    index_top_k=512,
    experts=256,
    top_k=6,
    inner=2048,
    hash_layers=3,
    vocab=129280,
    context=1048576,
    original_context=65536,
)


def scaled_down(layers: int, *, experts: int = 32, vocab: int = 4096) -> SyntheticDeepSeek:
    """The real model with fewer layers, experts and tokens: every width of a layer is as it is.

    Layers are those of the real model's start, of all kinds from four on; every token shows.
    """
    return replace(
        V4_FLASH,
        ratios=V4_FLASH.ratios[:layers],
        hash_layers=min(V4_FLASH.hash_layers, layers),
        experts=experts,
        vocab=vocab,
        words=True,
    )


def write_deepseek(path: Path | str, model: SyntheticDeepSeek) -> Path:
    """Write the model as one GGUF file and return its path; memory use is a few chunks."""
    return write_random(
        path,
        deepseek_metadata(model),
        deepseek_tensors(model),
        qtype=model.dense,
        types=model.types,
        seed=model.seed,
    )


def deepseek_metadata(model: SyntheticDeepSeek) -> dict[str, object]:
    """All keys of the file, the tokenizer's included; like the models, it brings no template."""
    keys: dict[str, object] = {
        "block_count": len(model.ratios),
        "context_length": model.context,
        "embedding_length": model.width,
        "embedding_length_out": model.width * model.streams,
        "vocab_size": model.vocab,
        "attention.head_count": model.heads,
        "attention.head_count_kv": 1,
        "attention.key_length": model.head_dim,
        "attention.value_length": model.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.q_lora_rank": model.q_rank,
        "attention.output_lora_rank": model.out_rank,
        "attention.output_group_count": model.groups,
        "attention.sliding_window": model.window,
        "attention.compress_ratios": list(model.ratios),
        "attention.compress_rope_freq_base": 160000.0,
        "attention.indexer.head_count": model.index_heads,
        "attention.indexer.key_length": model.index_dim,
        "attention.indexer.top_k": model.index_top_k,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": model.rotary_dim,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 16.0,
        "rope.scaling.original_context_length": model.original_context,
        "rope.scaling.yarn_beta_fast": 32.0,
        "rope.scaling.yarn_beta_slow": 1.0,
        "expert_count": model.experts,
        "expert_used_count": model.top_k,
        "expert_shared_count": 1,
        "expert_feed_forward_length": model.inner,
        "expert_weights_scale": 1.5,
        "expert_weights_norm": True,
        "expert_gating_func": 4,
        "swiglu_clamp_exp": [10.0] * len(model.ratios),
        "hash_layer_count": model.hash_layers,
        "hyper_connection.count": model.streams,
        "hyper_connection.sinkhorn_iterations": 20,
        "hyper_connection.epsilon": 1e-6,
    }
    tokenizer = tokenizer_metadata(model.vocab, "joyai-llm", words=model.words)
    del tokenizer["tokenizer.chat_template"]
    return {
        "general.architecture": "deepseek4",
        "general.type": "model",
        "general.name": "synthetic deepseek4",
        "general.quantization_version": 2,
        **{f"deepseek4.{name}": value for name, value in keys.items()},
        **tokenizer,
    }


def deepseek_tensors(model: SyntheticDeepSeek) -> list[TensorSpec]:
    """The tensors in the file's order."""
    specs = [TensorSpec("token_embd.weight", (model.vocab, model.width))]
    for layer, ratio in enumerate(model.ratios):
        block = f"blk.{layer}"
        specs += _attention_tensors(model, block)
        if ratio:
            series = 2 if ratio == 4 else 1
            name = f"{block}.attn_compressor"
            specs += _compressor_tensors(model, name, ratio, series, model.head_dim)
        if ratio == 4:
            specs += _indexer_tensors(model, block)
        specs += _feed_tensors(model, block, by_token=layer < model.hash_layers)
        specs += _mixing_tensors(model, f"{block}.hc_attn", model.streams * (2 + model.streams), 3)
        specs += _mixing_tensors(model, f"{block}.hc_ffn", model.streams * (2 + model.streams), 3)
    specs += _mixing_tensors(model, "output_hc", model.streams, 1)
    specs.append(TensorSpec("output_norm.weight", (model.width,), "norm"))
    specs.append(TensorSpec("output.weight", (model.vocab, model.width)))
    return specs


def _attention_tensors(model: SyntheticDeepSeek, block: str) -> list[TensorSpec]:
    width, heads = model.width, model.heads * model.head_dim
    return [
        TensorSpec(f"{block}.attn_norm.weight", (width,), "norm"),
        TensorSpec(f"{block}.attn_q_a.weight", (model.q_rank, width)),
        TensorSpec(f"{block}.attn_q_a_norm.weight", (model.q_rank,), "norm"),
        TensorSpec(f"{block}.attn_q_b.weight", (heads, model.q_rank)),
        TensorSpec(f"{block}.attn_kv.weight", (model.head_dim, width)),
        TensorSpec(f"{block}.attn_kv_a_norm.weight", (model.head_dim,), "norm"),
        TensorSpec(
            f"{block}.attn_output_a.weight",
            (model.groups * model.out_rank, heads // model.groups),
        ),
        TensorSpec(f"{block}.attn_output_b.weight", (width, model.groups * model.out_rank)),
        TensorSpec(f"{block}.attn_sinks.weight", (model.heads,), "bias"),
    ]


def _compressor_tensors(
    model: SyntheticDeepSeek, name: str, ratio: int, series: int, dim: int
) -> list[TensorSpec]:
    return [
        TensorSpec(f"{name}_kv.weight", (series * dim, model.width)),
        TensorSpec(f"{name}_gate.weight", (series * dim, model.width)),
        TensorSpec(f"{name}_ape.weight", (ratio, series * dim), "bias", "F32"),
        TensorSpec(f"{name}_norm.weight", (dim,), "norm"),
    ]


def _indexer_tensors(model: SyntheticDeepSeek, block: str) -> list[TensorSpec]:
    query = (model.index_heads * model.index_dim, model.q_rank)
    weights = (model.index_heads, model.width)
    return [
        *_compressor_tensors(model, f"{block}.indexer_compressor", 4, 2, model.index_dim),
        TensorSpec(f"{block}.indexer.attn_q_b.weight", query),
        TensorSpec(f"{block}.indexer.proj.weight", weights, qtype=model.routers),
    ]


def _feed_tensors(model: SyntheticDeepSeek, block: str, *, by_token: bool) -> list[TensorSpec]:
    up, down = (model.inner, model.width), (model.width, model.inner)
    router = (model.experts, model.width)
    specs = [
        TensorSpec(f"{block}.ffn_norm.weight", (model.width,), "norm"),
        TensorSpec(f"{block}.ffn_gate_inp.weight", router, qtype=model.routers),
    ]
    if by_token:
        name, shape = f"{block}.ffn_gate_tid2eid.weight", (model.vocab, model.top_k)
        specs.append(TensorSpec(name, shape, "numbers", "I32", below=model.experts))
    else:
        specs.append(TensorSpec(f"{block}.exp_probs_b.bias", (model.experts,), "bias"))
    for suffix, experts, kind in (
        ("exps", (model.experts,), model.experts_type),
        ("shexp", (), model.shared),
    ):
        for role, shape in (("ffn_gate", up), ("ffn_up", up), ("ffn_down", down)):
            role = f"{role}_{suffix}"
            chosen = model.types.get(role, kind)
            specs.append(TensorSpec(f"{block}.{role}.weight", (*experts, *shape), qtype=chosen))
    return specs


def _mixing_tensors(
    model: SyntheticDeepSeek, name: str, rows: int, scales: int
) -> list[TensorSpec]:
    return [
        TensorSpec(f"{name}_fn.weight", (rows, model.streams * model.width), qtype=model.mixing),
        TensorSpec(f"{name}_base.weight", (rows,), "bias"),
        TensorSpec(f"{name}_scale.weight", (scales,), "norm"),
    ]
