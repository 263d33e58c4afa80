"""Tiny random models of each architecture give transformers' logits; SmolLM2 gives its text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import gguf
import pytest
import torch
import transformers

from luce_core.testing.driver import Driver
from luce_core.text.tokenizer import Tokenizer
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import write_gguf

SIZES = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}

ROPES: dict[str, dict[str, object]] = {
    "default": {"rope_type": "default", "rope_theta": 10_000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}

_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_ROOT_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def _gguf_name(name: str) -> str:
    if name in _ROOT_NAMES:
        return _ROOT_NAMES[name]
    _, _, index, rest = name.split(".", 3)
    stem, _, kind = rest.rpartition(".")
    return f"blk.{index}.{_LAYER_NAMES[stem]}.{kind}"


def _interleave(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q and k as converters write them for arch llama: halves become pairs."""
    rows = weight.shape[0]
    return weight.view(heads, 2, rows // heads // 2, -1).transpose(1, 2).reshape(weight.shape)


def write_model(path: Path, arch: str, model: transformers.PreTrainedModel) -> Path:
    """The model as converters write it: names, permutation, rope keys, rope_freqs."""
    config = model.config
    rope: Mapping[str, object] = config.rope_parameters
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    metadata: dict[str, object] = {
        f"{arch}.block_count": config.num_hidden_layers,
        f"{arch}.context_length": config.max_position_embeddings,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_attention_heads,
        f"{arch}.attention.head_count_kv": config.num_key_value_heads,
        f"{arch}.attention.key_length": head_dim,
        f"{arch}.attention.value_length": head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{arch}.rope.freq_base": rope["rope_theta"],
        f"{arch}.rope.dimension_count": head_dim,
    }
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        metadata[f"{arch}.rope.scaling.type"] = kind
        metadata[f"{arch}.rope.scaling.factor"] = rope["factor"]
    if kind == "yarn":
        metadata[f"{arch}.rope.scaling.original_context_length"] = rope[
            "original_max_position_embeddings"
        ]
    tensors = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value = weight.detach().clone().float()
        if arch == "llama" and ".q_proj." in name:
            value = _interleave(value, config.num_attention_heads)
        if arch == "llama" and ".k_proj." in name:
            value = _interleave(value, config.num_key_value_heads)
        tensors[_gguf_name(name)] = value
    if kind == "llama3":
        plain = 1.0 / (
            float(str(rope["rope_theta"])) ** (torch.arange(0, head_dim, 2).float() / head_dim)
        )
        tensors["rope_freqs.weight"] = plain / model.model.rotary_emb.inv_freq
    return write_gguf(path, arch, metadata, tensors)


def tiny(arch: str, rope: str, *, tied: bool, **more: object) -> transformers.PreTrainedModel:
    kinds = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }
    config_type, model_type = kinds[arch]
    torch.manual_seed(5)
    config = config_type(
        **{**SIZES, **more}, rope_parameters=dict(ROPES[rope]), tie_word_embeddings=tied
    )
    model = model_type(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.copy_(1 + 0.3 * torch.randn_like(weight))
            elif "bias" in name:
                weight.copy_(0.3 * torch.randn_like(weight))
            else:
                weight.mul_(3)
    return model


CASES = [
    ("llama", "default", True, {}),
    ("llama", "linear", False, {}),
    ("llama", "llama3", False, {"num_key_value_heads": 1}),
    ("llama", "yarn", False, {"num_key_value_heads": 4}),
    ("llama", "default", False, {"attention_bias": True}),
    ("qwen2", "default", True, {}),
    ("qwen2", "yarn", False, {}),
    ("qwen3", "default", True, {"head_dim": 32}),
    ("qwen3", "yarn", False, {"head_dim": 16}),
]


@pytest.mark.parametrize(("arch", "rope", "tied", "more"), CASES)
def test_logits_equal_transformers(arch, rope, tied, more, tmp_path, load, all_logits) -> None:
    reference = tiny(arch, rope, tied=tied, **more)
    engine = load(write_model(tmp_path / "tiny.gguf", arch, reference))
    ids = torch.randint(0, 300, (60,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = reference(ids[None]).logits[0]
    ours = all_logits(engine, ids.tolist())
    assert (ours - expected[1:]).abs().max() < 1e-4
    assert torch.equal(ours.argmax(-1), expected[1:].argmax(-1))


def test_a_linear_factor_without_a_type_key_is_linear_scaling(tmp_path, load, all_logits) -> None:
    reference = tiny("llama", "linear", tied=True)
    path = write_model(tmp_path / "tiny.gguf", "llama", reference)
    with GgufFile.open(path) as file:
        keys = dict(file.metadata.values)
        del keys["llama.rope.scaling.type"]
        older = write_gguf(tmp_path / "older.gguf", "llama", keys, dict(file.tensors))
    ids = list(range(40))
    assert torch.equal(all_logits(load(older), ids), all_logits(load(path), ids))


PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "def fibonacci(n):",
    "Count from one to ten in German.",
    "Why is the sky blue? Explain it to a child.",
]


@pytest.fixture
def read_once(monkeypatch) -> None:
    """transformers asks for the same names for each module, and reads a file twice."""
    for name in ("get_tensor_name_map", "GGUFReader"):
        monkeypatch.setattr(gguf, name, cache(getattr(gguf, name)))


@pytest.mark.usefixtures("read_once")
def test_smollm2_writes_the_same_text_as_transformers(smollm2, load) -> None:
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    ).eval()
    engine = load(smollm2, blocks=128)
    with GgufFile.open(smollm2) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    driver = Driver(engine, pool_blocks=128)
    chats = [
        tokenizer.encode(
            f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n", parse_special=True
        )
        for prompt in PROMPTS
    ]
    requests = [driver.submit(ids, max_tokens=64) for ids in chats]
    driver.run()
    for ids, request in zip(chats, requests, strict=True):
        tokens = list(driver.output(request).tokens)
        assert len(tokens) == 64
        # What it would generate greedily, token by token: each is its best behind those before.
        with torch.no_grad():
            best = oracle(torch.tensor([[*ids, *tokens[:-1]]])).logits[0].argmax(-1)
        assert best[len(ids) - 1 :].tolist() == tokens
