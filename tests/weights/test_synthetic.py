"""Synthetic models are real model files: readable by others, seeded, and of a sane scale."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from luce_core.errors import ConfigError
from luce_core.text.tokenizer import Tokenizer
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import write_gguf
from luce_core.weights.quant_types import QuantTensor
from luce_core.weights.synthetic import SyntheticModel, TensorSpec, write_random, write_synthetic
from luce_core.weights.synthetic_blocks import SYNTHETIC_TYPES
from luce_core.weights.synthetic_vocab import tokenizer_metadata
from luce_core.weights.typed_metadata import TypedMetadata


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_transformers_reads_the_same_model(arch: str, tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", SyntheticModel(arch=arch, tied=False))
    config = AutoConfig.from_pretrained(tmp_path, gguf_file=path.name)
    assert (config.model_type, config.num_hidden_layers, config.hidden_size) == (arch, 2, 64)
    # transformers 5.24 does not read attention.key_length of qwen3.
    config.head_dim = 16
    model = AutoModelForCausalLM.from_config(config)
    checkpoint = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    model.load_state_dict(checkpoint["tensors"])
    with GgufFile.open(path) as file:
        down = file.tensors["blk.1.ffn_down.weight"].dequantize()
        head = file.tensors["output.weight"].dequantize()
    assert torch.equal(model.model.layers[1].mlp.down_proj.weight, down)
    assert torch.equal(model.lm_head.weight, head)
    with torch.no_grad():
        logits = model(torch.arange(10)[None]).logits
    assert torch.isfinite(logits).all()
    assert 0.5 < logits.std() < 2


def test_transformers_reads_the_same_tokenizer(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", SyntheticModel())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    text = "<|im_start|>user\nthe and Grüße 漢<|im_end|>\n"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.convert_ids_to_tokens(ids[:4]) == ["<|im_start|>", "u", "s", "er"]
    assert tokenizer.convert_ids_to_tokens(ids[5:7]) == ["the", "Ġand"]
    assert tokenizer.eos_token == "<|im_end|>"
    messages = [{"role": "user", "content": "hi"}]
    chat = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("pre", ["smollm", "qwen2", "qwen35", "joyai-llm", "default"])
def test_every_token_of_a_vocabulary_of_words_shows_and_can_be_written(pre: str) -> None:
    tokenizer = Tokenizer.from_metadata(
        TypedMetadata("m.gguf", tokenizer_metadata(20_000, pre, words=True))
    )
    texts = [tokenizer.decode([token_id]) for token_id in range(tokenizer.vocab_size)]
    assert [i for i, text in enumerate(texts) if not text] == sorted(tokenizer.special_ids)
    shown = [text for text in texts if text]
    assert len(set(shown)) == len(shown)
    assert all(text.isascii() and (text.isprintable() or text == "\n") for text in shown)
    assert [i for i, text in enumerate(texts) if text and _ids(tokenizer, text) != [i]] == []
    prompt = "Write a C++ function:\n  for (i = 0; i < 10; i++)"
    assert tokenizer.decode(_ids(tokenizer, prompt)) == prompt


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, parse_special=False)


@pytest.mark.parametrize("name", SYNTHETIC_TYPES)
def test_random_blocks_have_the_wanted_spread(name: str, tmp_path: Path) -> None:
    specs = [TensorSpec("w", (256, 1024)), TensorSpec("v", (8, 256))]
    path = write_random(tmp_path / "m.gguf", {"general.architecture": "x"}, specs, qtype=name)
    with GgufFile.open(path) as file:
        weight = file.tensors["w"]
        assert weight.qtype.name == name
        values = weight.dequantize()
    assert torch.isfinite(values).all()
    assert values.std() * 1024**0.5 == pytest.approx(1, abs=0.12)
    assert values.mean().abs() < values.std() / 20
    product = torch.randn(64, 1024) @ values.T
    assert 0.8 < product.std() < 1.3


def test_the_seed_decides_every_byte(tmp_path: Path) -> None:
    def write(name: str, **fields: object) -> bytes:
        return write_synthetic(tmp_path / name, SyntheticModel(**fields)).read_bytes()  # type: ignore[arg-type]

    first = write("a.gguf", seed=1)
    assert write("b.gguf", seed=1) == first
    assert write("c.gguf", seed=2) != first


def test_types_can_be_set_by_role_and_by_name_and_fall_back_by_width(tmp_path: Path) -> None:
    model = SyntheticModel(
        qtype="Q4_K",
        width=256,
        ff=96,
        types={"attn_k": "BF16", "attn_norm.weight": "F16", "blk.1.attn_k.weight": "F32"},
    )
    with GgufFile.open(write_synthetic(tmp_path / "m.gguf", model)) as file:
        types = {name: tensor.qtype.name for name, tensor in file.tensors.items()}
    assert types["blk.0.attn_q.weight"] == "Q4_K"
    assert types["blk.0.ffn_down.weight"] == "Q8_0"
    assert types["blk.0.attn_k.weight"] == "BF16"
    assert types["blk.1.attn_k.weight"] == "F32"
    assert types["blk.0.attn_norm.weight"] == "F16"
    assert types["blk.0.ffn_norm.weight"] == "F32"


def test_a_file_is_written_in_chunks(tmp_path: Path) -> None:
    specs = [TensorSpec("w", (65536, 1024))]
    tracemalloc.start()
    path = write_random(tmp_path / "m.gguf", {"general.architecture": "x"}, specs, qtype="Q8_0")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 65536 * 1024
    assert peak < 32 << 20


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"arch": "bert"}, "no synthetic 'bert': known are llama, qwen2, qwen3"),
        ({"heads": 3}, "width 64 is not a multiple of 3 heads"),
        ({"kv_heads": 3}, "4 heads are not a multiple of 3 kv_heads"),
        ({"vocab": 256}, "needs at least 273 tokens, got 256"),
        ({"qtype": "Q9"}, "no quant type 'Q9': known are F32"),
        ({"qtype": "Q8_1"}, "no random Q8_1: known types are F32"),
    ],
)
def test_impossible_models_are_refused(
    fields: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        write_synthetic(tmp_path / "m.gguf", SyntheticModel(**fields))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_written_files_read_back_through_the_gguf_package(tmp_path: Path) -> None:
    metadata = {
        "u32": 7, "i32": -7, "u64": 1 << 40, "i64": -(1 << 40), "f32": 0.5, "t": True,
        "s": "héllo", "ints": [1, -2], "floats": [0.5, 1.5], "strings": ["a", "é", ""],
        "u16": np.uint16(3), "f64s": np.array([0.1]), "bools": [True, False],
    }  # fmt: skip
    values = torch.linspace(-1, 1, 128).view(2, 64)
    tensors = {
        "f32": values,
        "f16": values.half(),
        "bf16": values.bfloat16(),
        "ids": torch.tensor([3, 1], dtype=torch.int32),
        "q8": QuantTensor.from_values("q8", values, "Q8_0"),
        "experts": values.view(2, 2, 32),
    }
    path = write_gguf(tmp_path / "m.gguf", "llama", metadata, tensors)
    reader = gguf.GGUFReader(path)
    read = {key: field.contents() for key, field in reader.fields.items()}
    assert {key: read[key] for key in metadata} == {**metadata, "f64s": [0.1]}
    assert read["general.architecture"] == "llama"
    kinds = {key: field.types[-1].name for key, field in reader.fields.items()}
    wanted = {"u32": "UINT32", "i32": "INT32", "u64": "UINT64", "i64": "INT64", "u16": "UINT16"}
    assert {key: kinds[key] for key in wanted} == wanted
    by_name = {tensor.name: tensor for tensor in reader.tensors}
    assert by_name["experts"].shape.tolist() == [32, 2, 2]
    assert (by_name["f32"].data == values.numpy()).all()
    with GgufFile.open(path) as file:
        assert torch.equal(file.tensors["bf16"].dequantize(), values.bfloat16().float())
        assert torch.equal(file.tensors["ids"].dequantize(), torch.tensor([3.0, 1.0]))
        assert file.tensors["q8"].shape == (2, 64)
        assert (file.tensors["q8"].dequantize() - values).abs().max() < 0.01


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write 'w' of torch\.uint8: known types are"):
        write_gguf(tmp_path / "m.gguf", "x", {}, {"w": torch.zeros(1, dtype=torch.uint8)})
    with pytest.raises(ConfigError, match="cannot write metadata 'k'"):
        write_gguf(tmp_path / "m.gguf", "x", {"k": None}, {})
    with pytest.raises(ConfigError, match="rows of 40 values to Q8_0: its blocks hold 32"):
        QuantTensor.from_values("w", torch.zeros(2, 40), "Q8_0")


def test_lists_of_integers_have_the_type_that_llama_cpp_reads(tmp_path: Path) -> None:
    """It refuses a vocabulary whose token types are not int32."""
    path = write_random(
        tmp_path / "m.gguf", tokenizer_metadata(320, "qwen2"), [TensorSpec("a.weight", (32, 32))]
    )
    field = gguf.GGUFReader(path).fields["tokenizer.ggml.token_type"]
    assert field.types == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32]
