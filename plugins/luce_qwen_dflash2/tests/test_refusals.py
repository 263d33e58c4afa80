"""What a file must hold: a wrong or missing key or tensor is refused by its name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from luce_qwen_dflash2.synthetic import SyntheticHybrid, write_hybrid

from luce_core.errors import ConfigError, ModelFileError
from luce_core.weights.gguf_file import GgufFile


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


@pytest.fixture(scope="module", params=[0, 6], ids=["dense", "experts"])
def any_model(request, tmp_path_factory) -> Path:
    """Two layers, one of each kind."""
    model = SyntheticHybrid(layers=2, interval=2, experts=request.param)
    return write_hybrid(tmp_path_factory.mktemp("any") / "any.gguf", model)


def shapes_of(path: Path) -> dict[str, tuple[int, ...]]:
    with GgufFile.open(path) as gguf:
        return {name: tuple(tensor.shape) for name, tensor in gguf.tensors.items()}


def test_every_missing_tensor_is_named(any_model, refused) -> None:
    """But that of the head, which then is the embeddings."""
    names = [name for name in shapes_of(any_model) if name != "output.weight"]
    assert len(names) > 25
    for name in names:
        refused(
            any_model,
            rf" {re.escape(name)}: this tensor is missing",
            change=lambda tensors, name=name: tensors.pop(name),
        )


@pytest.mark.parametrize("axis", [0, -1])
def test_every_misshapen_tensor_is_named_with_both_shapes(axis, any_model, refused) -> None:
    for name, shape in shapes_of(any_model).items():
        wrong, right = list(shape), str(list(shape))
        if name == "token_embd.weight":  # its rows say how large the vocabulary is
            if axis == 0:
                continue
            right = f"[any, {shape[1]}]"
        wrong[axis] += 1
        said = f" {name}: has shape {wrong}, expected {right}"
        refused(
            any_model,
            re.escape(said),
            change=lambda tensors, name=name, wrong=wrong: tensors.update(
                {name: torch.zeros(wrong)}
            ),
        )


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_q.weight",
        "blk.1.ssm_a",
        "blk.0.attn_norm.bias",
        "blk.2.attn_norm.weight",
        "rope_freqs.weight",
    ],
)
def test_an_extra_tensor_is_named(name, any_model, refused) -> None:
    """That of the other kind of layer, a bias, one behind the last layer, one of no layer."""
    refused(
        any_model,
        f" {re.escape(name)}: unknown",
        change=lambda tensors: tensors.update({name: torch.zeros(64)}),
    )


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
