"""What a file must hold: a wrong or missing key or tensor is refused by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from luce_qwen_dflash2.synthetic import SyntheticHybrid, write_hybrid

from luce_core.errors import ConfigError, ModelFileError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_hybrid(tmp_path_factory.mktemp("tiny") / "tiny.gguf", SyntheticHybrid())


@pytest.fixture
def refused(tmp_path, load, rewritten) -> Callable[..., None]:
    def check(source: Path, match: str, *, change=None, metadata=None) -> None:
        path = rewritten(source, tmp_path / "changed.gguf", change=change, metadata=metadata)
        with pytest.raises(ModelFileError, match=match):
            load(path)

    return check


@pytest.mark.parametrize(
    "name",
    ["blk.0.ssm_a", "blk.1.ssm_dt.bias", "blk.2.attn_gate.weight", "blk.3.attn_q_norm.weight"],
)
def test_a_missing_tensor_is_named(name, tiny, refused) -> None:
    refused(tiny, f"{name}.*missing", change=lambda t: t.pop(name))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_qkv.weight", (96, 64)),
        ("blk.0.ssm_conv1d.weight", (160, 3)),
        ("blk.3.attn_q.weight", (128, 64)),
        ("blk.3.ffn_down.weight", (64, 95)),
    ],
)
def test_a_misshapen_tensor_is_named_with_both_shapes(name, shape, tiny, refused) -> None:
    def reshape(tensors) -> None:
        tensors[name] = torch.zeros(shape)

    refused(tiny, rf"{name}.*\[{shape[0]}, {shape[1]}\]", change=reshape)


def test_an_extra_tensor_is_named(tiny, refused) -> None:
    def add(tensors) -> None:
        tensors["blk.1.attn_q.weight"] = torch.zeros(256, 64)

    refused(tiny, r"blk\.1\.attn_q\.weight", change=add)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("qwen35.ssm.time_step_rank", 5),
        ("qwen35.ssm.inner_size", 97),
        ("qwen35.ssm.conv_kernel", 1),
        ("qwen35.ssm.group_count", 0),
        ("qwen35.ssm.state_size", None),
        ("qwen35.attention.value_length", 16),
        ("qwen35.attention.head_count_kv", 3),
        ("qwen35.rope.scaling.type", "longrope"),
        ("qwen35.rope.dimension_count", 40),
        ("qwen35.attention.head_count_kv", [0, 0, 0, 3]),
        ("qwen35.full_attention_interval", 0),
        ("qwen35.nextn_predict_layers", 4),
        ("qwen35.attention.recurrent_layers", [True, False]),
        ("qwen35.block_count", 0),
    ],
)
def test_what_this_code_does_not_do_is_refused_by_key(key, value, tiny, refused) -> None:
    refused(tiny, key.replace(".", r"\."), metadata={key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("qwen35moe.expert_used_count", 7),
        ("qwen35moe.expert_count", None),
        ("qwen35moe.expert_gating_func", 2),
        ("qwen35moe.expert_weights_scale", 2.5),
    ],
)
def test_a_mixture_that_this_code_does_not_do_is_refused_by_key(
    key, value, tmp_path, refused
) -> None:
    path = write_hybrid(tmp_path / "moe.gguf", SyntheticHybrid(experts=6))
    refused(path, key.replace(".", r"\."), metadata={key: value})


def test_a_context_beyond_the_model_s_is_refused(tiny, load) -> None:
    with pytest.raises(ConfigError, match="--max-ctx 99999 is more than the model's 512"):
        load(tiny, max_context=99_999)
