"""Small vocabularies made on the spot, as a model file would state them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from luce_core.text.tokenizer import Tokenizer as LuceTokenizer
from luce_core.weights.typed_metadata import TypedMetadata

from .corpus import TEXTS

BYTES = pre_tokenizers.ByteLevel.alphabet()
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VISIBLE = ("<think>", "</think>", "<tool_call>", "</tool_call>")


@cache
def trained(split: str, size: int = 700) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tokens and merges of a byte-level BPE trained on the corpus, words split by `split`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = sorted(BYTES)
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator(list(TEXTS) * 2, trainer)
    vocab = tokenizer.get_vocab()
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return tuple(sorted(vocab, key=vocab.__getitem__)), tuple(map(" ".join, merges))


def byte_level(
    pre: str | None,
    *,
    tokens: tuple[str, ...] | None = None,
    merges: tuple[str, ...] = (),
    control: tuple[str, ...] = CONTROL,
    visible: tuple[str, ...] = VISIBLE,
    unused: int = 2,
    **keys: Any,
) -> TypedMetadata:
    """A gpt2 vocabulary: the given tokens (default: one per byte), then the special ones."""
    plain = tuple(sorted(BYTES)) if tokens is None else tokens
    pads = tuple(f"[PAD{i}]" for i in range(unused))
    values: dict[str, Any] = {
        "general.architecture": "qwen2",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*plain, *control, *visible, *pads],
        "tokenizer.ggml.token_type": [1] * len(plain)
        + [3] * len(control)
        + [4] * len(visible)
        + [5] * unused,
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.eos_token_id": len(plain) + len(control) - 1,
    }
    if pre is not None:
        values["tokenizer.ggml.pre"] = pre
    for name, value in keys.items():
        values[f"tokenizer.ggml.{name}"] = value
    return TypedMetadata("tiny.gguf", values)


def byte_tokenizer(**keys: Any) -> LuceTokenizer:
    """One token per byte, and the special tokens."""
    return LuceTokenizer.from_metadata(byte_level("qwen2", **keys))


def sentencepiece(pieces: dict[str, float], **keys: Any) -> TypedMetadata:
    """<unk> <s> </s>, 256 byte tokens, then the pieces with their scores."""
    heads = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{i:02X}>" for i in range(256)]
    values: dict[str, Any] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*heads, *byte_tokens, *pieces],
        "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    for name, value in keys.items():
        values[f"tokenizer.ggml.{name}"] = value
    return TypedMetadata("tiny-spm.gguf", values)
