"""Which draft files load, by which names, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from luce_qwen_dflash2.draft.config import DraftConfig, TargetShape, read_config
from luce_qwen_dflash2.draft.draft import Anchor
from luce_qwen_dflash2.draft.naming import ARCHITECTURES

from luce_core.errors import ConfigError, ModelFileError
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import write_gguf
from luce_core.weights.quant_types import QuantTensor

TARGET = TargetShape(layers=6, width=64, vocab_size=320)


@pytest.fixture(params=["first", "second"])
def config(request: pytest.FixtureRequest) -> DraftConfig:
    found: DraftConfig = request.getfixturevalue(request.param)
    return found


def changed(path: Path, keys: dict[str, Any], tensors: dict[str, Any] | None = None) -> Path:
    """The file again with keys and tensors replaced, or removed where the value is None."""
    gguf = GgufFile.open(path, role="draft")
    metadata = {**gguf.metadata.values, **keys}
    kept = {**gguf.tensors, **(tensors or {})}
    arch = str(metadata.pop("general.architecture"))
    return write_gguf(
        path.with_name("changed.gguf"),
        arch,
        {key: value for key, value in metadata.items() if value is not None},
        {name: tensor for name, tensor in kept.items() if tensor is not None},
    )


def test_all_families_of_files_load_to_the_same_draft(
    config: DraftConfig, write: Any, load: Any, features_of: Any
) -> None:
    blocks, hidden = [], []
    for arch in ARCHITECTURES:
        path = write(config, arch=arch, name=f"{arch}.gguf")
        assert read_config(GgufFile.open(path, role="draft"), TARGET) == config
        ours = load(path)
        ours.inject(features_of(70))
        blocks.append(ours.draft.propose([Anchor(0, 3, 70, 7)]))
        hidden.append(ours.seen_hidden[0])
    assert blocks[0] == blocks[1] == blocks[2]
    assert torch.equal(hidden[0], hidden[1])
    assert torch.equal(hidden[0], hidden[2])


def test_the_families_count_the_targets_layers_differently(second: DraftConfig, write: Any) -> None:
    stated = {}
    for arch in ARCHITECTURES:
        metadata = GgufFile.open(write(second, arch=arch), role="draft").metadata
        key = "dflash.target_layers" if arch == "dflash" else f"{arch}.dflash.target_layer_ids"
        stated[arch] = metadata.ints(key)
    assert stated["dflash"] == (2, 4, 6)
    assert stated["dflash-draft"] == stated["qwen35-dflash-draft"] == (1, 3, 5)


def test_other_spellings_of_tensors_are_the_same_tensors(
    second: DraftConfig, write: Any, load: Any, features_of: Any
) -> None:
    path = write(second, arch="dflash-draft")
    tensors = GgufFile.open(path, role="draft").tensors
    renamed = {
        "dflash.fc.weight": "dflash_fc.weight",
        "dflash.hidden_norm.weight": "dflash_hidden_norm.weight",
        "dflash.selector.pred_cb": "selector_predecessor.weight",
        "blk.0.attn_conv.base": "blk.0.attn_conv_base",
    }
    swaps: dict[str, Any] = dict.fromkeys(renamed)
    other = changed(path, {}, swaps | {new: tensors[old] for old, new in renamed.items()})
    blocks = []
    for file in (path, other):
        ours = load(file)
        ours.inject(features_of(20))
        blocks.append(ours.draft.propose([Anchor(0, 3, 20, 7)]))
    assert blocks[0] == blocks[1]


def test_quantised_weights_and_codebooks_load(
    second: DraftConfig, write: Any, load: Any, weights_of: Any, features_of: Any
) -> None:
    plain = weights_of(second)
    packed = {
        name: QuantTensor.from_values(name, weight, "Q8_0")
        if weight.ndim == 2 and weight.shape[1] % 32 == 0
        else weight
        for name, weight in plain.items()
    }
    rounded = {
        name: weight.dequantize() if isinstance(weight, QuantTensor) else weight
        for name, weight in packed.items()
    }
    blocks = []
    for number, weights in enumerate((packed, rounded)):
        ours = load(write(second, weights, name=f"{number}.gguf"))
        ours.inject(features_of(20))
        blocks.append(ours.draft.propose([Anchor(0, 3, 20, 7)]))
    assert blocks[0] == blocks[1]


@pytest.mark.parametrize(
    ("stated", "causal"), [(None, (True, True, False)), (True, (True,) * 3), (False, (False,) * 3)]
)
def test_what_a_file_does_not_say_of_causality_follows_from_the_windows(
    first: DraftConfig, write: Any, stated: bool | None, causal: tuple[bool, ...]
) -> None:
    path = changed(write(first), {"dflash.attention.causal": stated})
    config = read_config(GgufFile.open(path, role="draft"), TARGET)
    assert config == replace(first, causal=causal)


def test_a_window_without_a_pattern_is_every_layers(second: DraftConfig, write: Any) -> None:
    path = changed(write(second), {"dflash.attention.sliding_window_pattern": None})
    assert read_config(GgufFile.open(path, role="draft"), TARGET) == second


WRONG_KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "vocabulary": (
        {"dflash.vocab_size": 300},
        "dflash.vocab_size: must be the target's 320 tokens",
    ),
    "width": (
        {"dflash.embedding_length": 32},
        "dflash.embedding_length: must be the target's width 64",
    ),
    "layer outside": (
        {"dflash.target_layers": np.array([2, 4, 7], np.int32)},
        r"dflash.target_layers: must be ascending layers of the target, 1 to 6, got \[2, 4, 7\]",
    ),
    "layer 0": (
        {"dflash.target_layers": np.array([0, 2, 4], np.int32)},
        "dflash.target_layers: must be ascending layers of the target, 1 to 6",
    ),
    "no layers": ({"dflash.target_layers": None}, "dflash.target_layers: is missing"),
    "mask": (
        {"tokenizer.ggml.mask_token_id": 320},
        "tokenizer.ggml.mask_token_id: must be a token of the target, 0 to 319, got 320",
    ),
    "no mask": ({"tokenizer.ggml.mask_token_id": None}, "mask_token_id: is missing"),
    "block": ({"dflash.block_size": 1}, "dflash.block_size: must be 2 to 64, got 1"),
    "endless block": ({"dflash.block_size": 1 << 30}, "dflash.block_size: must be 2 to 64"),
    "heads": ({"dflash.attention.head_count_kv": 3}, "head_count_kv: must be one divisor of the 4"),
    "scale": ({"dflash.logit_scale": 2.0}, "dflash.logit_scale: must be 1 or absent, got 2.0"),
    "embedding scale": ({"dflash.embedding_scale": 8.0}, "dflash.embedding_scale: must be 1"),
    "softcap": (
        {"dflash.final_logit_softcapping": 30.0},
        "dflash.final_logit_softcapping: must be 0 or absent",
    ),
    "sections": (
        {"dflash.rope.dimension_sections": np.array([8, 8, 0, 0], np.int32)},
        "dflash.rope.dimension_sections: must be 16 and zeros",
    ),
    "yarn": (
        {"dflash.rope.scaling.type": "yarn"},
        "dflash.rope.scaling.type: must be one of 'none'",
    ),
    "pattern": (
        {"dflash.attention.sliding_window_pattern": np.array([True])},
        "sliding_window_pattern: must be 3 values, one per layer",
    ),
    "window": ({"dflash.attention.sliding_window": 0}, "sliding_window: must be at least 1"),
    "top_k": ({"dflash.selector_top_k": 321}, "dflash.selector_top_k: must be 1 to 256"),
    "no rank": ({"dflash.selector_rank": None}, "dflash.selector_rank: is missing"),
    "group": ({"dflash.conv_group_size": 24}, "conv_group_size: must be a divisor of the width 64"),
    "version": ({"dflash.version": 1}, "dflash.version: must be one of 2, got 1"),
    "new version": ({"dflash.dflash.version": 3}, "dflash.dflash.version: must be one of 2, got 3"),
    "hyper-connections": (
        {"dflash.hyper_connection.count": 4},
        "dflash.hyper_connection.count: must be absent: DSpark drafts are not supported",
    ),
    "dspark": ({"dflash.dflash.dspark.rank": 4}, "dspark.rank: must be absent: DSpark"),
    "domino": ({"dflash.dflash.domino.rank": 4}, "domino.rank: must be absent: Domino"),
    "gemma": (
        {"general.architecture": "gemma4-dflash-draft"},
        "general.architecture: must be one of 'dflash', 'qwen35-dflash-draft', 'dflash-draft', got",
    ),
}


@pytest.mark.parametrize("case", WRONG_KEYS)
def test_keys_that_do_not_fit_are_refused_by_name(
    second: DraftConfig, write: Any, load: Any, case: str
) -> None:
    keys, said = WRONG_KEYS[case]
    path = changed(write(second), keys)
    with pytest.raises(ModelFileError, match=said):
        load(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("n_target_layers", 5), ("n_target_features", 64)],
    ids=["layers", "features"],
)
def test_counts_that_contradict_the_layers_are_refused(
    second: DraftConfig, write: Any, load: Any, key: str, value: int
) -> None:
    path = changed(write(second, arch="dflash-draft"), {f"dflash-draft.dflash.{key}": value})
    with pytest.raises(ModelFileError, match=key):
        load(path)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"markov_w1.weight": torch.ones(4, 4)}, "markov_w1.weight: this is a DSpark draft"),
        ({"conf_proj.weight": torch.ones(4, 4)}, "conf_proj.weight: this is a DSpark draft"),
        ({"dflash.domino.w.weight": torch.ones(4, 4)}, "this is a Domino draft"),
        ({"blk.0.surprise.weight": torch.ones(4, 4)}, "blk.0.surprise.weight: unknown"),
        ({"dflash.aux_hidden_norm.0.weight": torch.ones(64)}, "aux_hidden_norm.0.weight: unknown"),
        ({"blk.1.attn_conv_base": None}, "blk.1.attn_conv_base: this tensor is missing"),
        ({"selector_hidden.weight": None}, "selector_hidden.weight: this tensor is missing"),
        (
            {"fc.weight": torch.ones(64, 128)},
            r"fc.weight: has shape \[64, 128\], expected \[64, 192\]",
        ),
        (
            {"selector_successor.weight": torch.ones(319, 32)},
            r"selector_successor.weight: has shape \[319, 32\], expected \[320, 32\]",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    second: DraftConfig, write: Any, load: Any, tensors: dict[str, Any], said: str
) -> None:
    path = changed(write(second), {}, tensors)
    with pytest.raises(ModelFileError, match=said):
        load(path)


def test_every_tensor_that_is_missing_or_misshapen_is_named(
    config: DraftConfig, write: Any, load: Any
) -> None:
    path = write(config)
    tensors = GgufFile.open(path, role="draft").tensors
    assert len(tensors) > 35
    for name, tensor in tensors.items():
        with pytest.raises(ModelFileError, match=f" {re.escape(name)}: this tensor is missing"):
            load(changed(path, {}, {name: None}))
        shape: list[Any] = list(tensor.shape)
        wrong = [*shape[:-1], shape[-1] + 1]
        if name.endswith("ffn_gate.weight"):  # its rows say how wide the others are
            shape[0] = "any"
        said = f" {name}: has shape {wrong}, expected [{', '.join(map(str, shape))}]"
        with pytest.raises(ModelFileError, match=re.escape(said)):
            load(changed(path, {}, {name: torch.ones(wrong)}))


def test_a_missing_tensor_goes_by_the_files_own_name(
    second: DraftConfig, write: Any, load: Any
) -> None:
    path = changed(write(second, arch="dflash-draft"), {}, {"dflash.fc.weight": None})
    with pytest.raises(ModelFileError, match=r"dflash\.fc\.weight: this tensor is missing"):
        load(path)


@pytest.mark.parametrize("size", [1, 9])
def test_a_block_larger_than_trained_is_refused(second: DraftConfig, load: Any, size: int) -> None:
    with pytest.raises(ConfigError, match=f"--draft-block-size {size}: .* 2 to 8 are accepted"):
        load(second, block_size=size)
