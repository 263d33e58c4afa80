"""Both models as GGUF files, and the target back from its file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import write_gguf
from luce_core.weights.model_role import Role
from luce_core.weights.quant.tensor import QuantTensor

from . import data
from .draft import Draft, DraftConfig
from .names import TARGET_ROOT, draft_names, target_layer_names
from .target import Target, TargetConfig

TARGET_FILE, DRAFT_FILE = "tiny-code.gguf", "tiny-code-dflash2.gguf"
Model = TypeVar("Model", bound=nn.Module)
_NORMAL, _CONTROL = 1, 3
# A completion model: a chat is its messages' text, one after the other.
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def write_target(out: Path, model: Target) -> Path:
    config = model.config
    weights = model.state_dict()
    tensors = {gguf: weights[name] + shift for gguf, (name, shift) in TARGET_ROOT.items()}
    for index in range(config.layers):
        for gguf, (name, change) in target_layer_names(config, index).items():
            tensors[f"blk.{index}.{gguf}"] = change.write(weights[f"model.layers.{index}.{name}"])
    metadata = {
        "general.name": "tiny-code",
        "general.license": "apache-2.0",
        **_prefixed("qwen35", _target_metadata(config)),
        **_tokenizer_metadata(out),
    }
    return write_gguf(out / TARGET_FILE, "qwen35", metadata, _quantised(tensors))


def write_draft(out: Path, model: Draft) -> Path:
    config = model.config
    weights = model.state_dict()
    tensors = {gguf: weights[name] for gguf, name in draft_names(config.layers).items()}
    metadata = {
        "general.name": "tiny-code-dflash2",
        "general.license": "apache-2.0",
        **_prefixed("dflash", _draft_metadata(config)),
        **_tokenizer_metadata(out),
    }
    return write_gguf(out / DRAFT_FILE, "dflash", metadata, _quantised(tensors))


def read_target(out: Path) -> Target:
    """The target with the weights that its file holds, frozen."""
    model = Target(TargetConfig())
    weights = _tensors(out / TARGET_FILE, "model")
    state = {name: weights[gguf] - shift for gguf, (name, shift) in TARGET_ROOT.items()}
    for index in range(model.config.layers):
        for gguf, (name, change) in target_layer_names(model.config, index).items():
            state[f"model.layers.{index}.{name}"] = change.read(weights[f"blk.{index}.{gguf}"])
    model.load_state_dict(state)
    return model.requires_grad_(False).eval()


def read_draft(out: Path) -> Draft:
    """The draft with the weights that its file holds, frozen."""
    model = Draft(DraftConfig())
    weights = _tensors(out / DRAFT_FILE, "draft")
    names = draft_names(model.config.layers)
    model.load_state_dict({name: weights[gguf] for gguf, name in names.items()})
    return model.requires_grad_(False).eval()


def _tensors(path: Path, role: Role) -> Mapping[str, Tensor]:
    with GgufFile.open(path, role=role) as file:
        return {name: tensor.dequantize().clone() for name, tensor in file.tensors.items()}


def _quantised(tensors: Mapping[str, Tensor]) -> dict[str, Tensor | QuantTensor]:
    """Matrices as Q8_0; vectors, convolution kernels as F32."""
    written: dict[str, Tensor | QuantTensor] = {}
    for name, values in tensors.items():
        values = values.detach().float().contiguous()
        plain = values.ndim != 2 or "conv1d" in name
        written[name] = values if plain else QuantTensor.from_values(name, values, "Q8_0")
    return written


def _prefixed(arch: str, values: Mapping[str, object]) -> dict[str, object]:
    return {f"{arch}.{key}": value for key, value in values.items()}


def _target_metadata(config: TargetConfig) -> dict[str, object]:
    return {
        "block_count": config.layers,
        "context_length": config.context,
        "embedding_length": config.width,
        "feed_forward_length": config.ff,
        "vocab_size": config.vocab,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.eps,
        "rope.freq_base": config.rope_base,
        "rope.dimension_count": config.rotary_dim,
        "rope.dimension_sections": [*config.rope_sections, 0],
        "full_attention_interval": config.full_every,
        "ssm.conv_kernel": config.conv,
        "ssm.state_size": config.delta_dim,
        "ssm.group_count": config.key_heads,
        "ssm.time_step_rank": config.value_heads,
        "ssm.inner_size": config.value_heads * config.delta_dim,
    }


def _draft_metadata(config: DraftConfig) -> dict[str, object]:
    return {
        "block_count": config.layers,
        "context_length": config.context,
        "embedding_length": config.width,
        "feed_forward_length": config.ff,
        "vocab_size": config.vocab,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.eps,
        "attention.sliding_window": config.window,
        "attention.sliding_window_pattern": [True] * config.layers,
        "attention.causal": False,
        "rope.freq_base": config.rope_base,
        "rope.dimension_count": config.head_dim,
        "rope.dimension_sections": [config.head_dim // 2, 0, 0, 0],
        # The file counts the layer whose input is tapped.
        "target_layers": [layer + 1 for layer in config.taps],
        "block_size": config.block,
        "conv_kernel_size": config.conv,
        "conv_group_size": config.conv_group,
        "selector_rank": config.rank,
        "selector_top_k": config.top_k,
    }


def _tokenizer_metadata(out: Path) -> dict[str, object]:
    tokenizer = data.load_tokenizer(out)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    tokens = [tokenizer.id_to_token(index) for index in range(data.VOCAB)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": data.PRE,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [
            _CONTROL if token in data.SPECIALS else _NORMAL for token in tokens
        ],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": data.END_ID,
        "tokenizer.ggml.eos_token_id": data.END_ID,
        "tokenizer.ggml.padding_token_id": data.PAD_ID,
        "tokenizer.ggml.mask_token_id": data.MASK_ID,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": _TEMPLATE,
    }


def main() -> None:
    """Write both files from whatever checkpoints there are, finished or not."""
    parser = argparse.ArgumentParser(prog="train_tiny_pair.export", description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of a training")
    parser.add_argument("--draft", default="draft-rollouts-*.pt", help="the draft's checkpoint")
    args = parser.parse_args()
    target = Target(TargetConfig())
    print(write_target(args.out, _load(args.out / "target.pt", target)))
    for path in sorted(args.out.glob(args.draft), key=lambda path: path.stat().st_mtime)[-1:]:
        print(write_draft(args.out, _load(path, Draft(DraftConfig()))))


def _load(path: Path, model: Model) -> Model:
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
    return model


if __name__ == "__main__":
    main()
