"""What a file must hold: a key that means another model, and a wrong tensor, are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from luce_deepseek_v4.engine import DeepSeekEngine
from luce_deepseek_v4.synthetic import SyntheticDeepSeek, write_deepseek

from luce_core.errors import ConfigError, ModelFileError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_deepseek(tmp_path_factory.mktemp("tiny") / "tiny.gguf", SyntheticDeepSeek())


@pytest.fixture
def refused(tmp_path, load, rewritten) -> Callable[..., None]:
    def check(source: Path, match: str, *, change=None, metadata=None) -> None:
        path = rewritten(source, tmp_path / "changed.gguf", change=change, metadata=metadata)
        with pytest.raises(ModelFileError, match=match):
            load(path)

    return check


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("engram.layers", [1, 2]),
        ("dspark.block_size", 5),
        ("target_layers", [6, 20]),
        ("attention.compress_ratios", [1, 2, 4, 128]),
        ("attention.compress_ratios", [0, 4, 128]),
        ("attention.indexer.kpool", 2),
        ("attention.head_count_kv", 2),
        ("attention.value_length", 32),
        ("attention.output_group_count", 3),
        ("attention.scale", 0.5),
        ("hyper_connection.low_rank", 16),
        ("hyper_connection.count", 0),
        ("expert_gating_func", 2),
        ("expert_weights_norm", False),
        ("expert_shared_count", 2),
        ("expert_used_count", 9),
        ("expert_feed_forward_length", [64, 64, 64, 32]),
        ("leading_dense_block_count", 1),
        ("hash_layer_count", 5),
        ("rope.dimension_count", 96),
        ("rope.scaling.type", "linear"),
        ("rope.scaling.yarn_ext_factor", 0.5),
        ("swiglu_clamp_exp", [10.0, -1.0, 10.0, 10.0]),
        ("nextn_predict_layers", 4),
    ],
)
def test_a_key_of_another_model_is_refused_by_name(key, value, tiny, refused) -> None:
    refused(tiny, rf"deepseek4\.{key}", metadata={f"deepseek4.{key}": value})


@pytest.mark.parametrize(
    "key",
    [
        "attention.compress_ratios",
        "attention.compress_rope_freq_base",
        "attention.sliding_window",
        "hyper_connection.sinkhorn_iterations",
        "swiglu_clamp_exp",
    ],
)
def test_a_missing_key_is_named(key, tiny, refused) -> None:
    refused(tiny, rf"deepseek4\.{key}.*missing", metadata={f"deepseek4.{key}": None})


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_sinks.weight",
        "blk.0.ffn_gate_tid2eid.weight",
        "blk.1.exp_probs_b.bias",
        "blk.1.indexer.proj.weight",
        "blk.1.attn_output_a.weight",
        "blk.2.attn_compressor_ape.weight",
        "output_hc_fn.weight",
    ],
)
def test_a_missing_tensor_is_named(name, tiny, refused) -> None:
    refused(tiny, f"{name}.*missing", change=lambda tensors: tensors.pop(name))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_output_a.weight", (2, 32, 64)),
        ("blk.1.attn_compressor_kv.weight", (64, 128)),
        ("blk.2.attn_compressor_ape.weight", (4, 64)),
        ("blk.1.hc_attn_fn.weight", (16, 512)),
    ],
)
def test_a_misshapen_tensor_is_named_with_its_shape(name, shape, tiny, refused) -> None:
    def reshape(tensors) -> None:
        tensors[name] = torch.zeros(shape)

    refused(tiny, rf"{name}.*\[{', '.join(map(str, shape))}\]", change=reshape)


def test_a_layer_of_a_window_has_no_compressor(tiny, refused) -> None:
    def add(tensors) -> None:
        tensors["blk.0.attn_compressor_kv.weight"] = torch.zeros(64, 128)

    refused(tiny, r"blk\.0\.attn_compressor_kv\.weight", change=add)


@pytest.mark.parametrize("wrong", [8, -1])
def test_a_table_that_names_no_expert_is_refused(wrong, tiny, refused) -> None:
    def change(tensors) -> None:
        name = "blk.0.ffn_gate_tid2eid.weight"
        table = tensors[name].dequantize().int()
        table[17, 1] = wrong
        tensors[name] = table

    refused(tiny, rf"blk\.0\.ffn_gate_tid2eid\.weight.*expert {wrong}, there are 8", change=change)


def test_a_table_shorter_than_the_vocabulary_is_refused(tiny, refused) -> None:
    def change(tensors) -> None:
        name = "blk.0.ffn_gate_tid2eid.weight"
        tensors[name] = tensors[name].dequantize().int()[:300]

    refused(tiny, r"blk\.0\.ffn_gate_tid2eid\.weight.*\[300, 2\].*\[320, 2\]", change=change)


def test_cache_types_must_be_equal(tiny, context) -> None:
    made = context(tiny)
    limits = replace(made.limits, cache_type_v="q8_0")
    with pytest.raises(ConfigError, match="--cache-type-k f32 and --cache-type-v q8_0"):
        DeepSeekEngine.load(replace(made, limits=limits))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ds4_step_rows": 5}, "--ds4-step-rows 5 .*--max-concurrency 6"),
        ({"ds4_prompt_rows": 17}, "--ds4-prompt-rows 17 .*16 rows"),
        ({"max_context": 2000}, "--max-ctx 2000"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(settings, said, tiny, load) -> None:
    with pytest.raises(ConfigError, match=said):
        load(tiny, **settings)
