"""A model in several files gives the tokens of the one file, whichever of them is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce_core.load import load_model, open_model
from luce_core.plugin_manager import build_plugin_manager
from luce_core.settings import parse_settings
from luce_core.testing.driver import run_alone
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import TensorSource, write_file
from luce_core.weights.quant_types import QuantTensor

SHARDS = 3


def greedy(model: Path) -> list[int]:
    """Sixteen tokens, loaded as `luce serve MODEL` loads."""
    plugins = build_plugin_manager()
    settings = parse_settings([str(model), "--threads", "1", "--kv-pool-tokens", "8192"])
    loaded = load_model(open_model(settings, plugins), plugins, lambda done, total, what: None)
    prompt = "The three largest cities of Europe are"
    ids = loaded.opened.text.tokenizer.encode(prompt, parse_special=False)
    output = run_alone(loaded.engine, ids, max_tokens=16, pool_blocks=loaded.pool.blocks)
    loaded.engine.close()
    return output.tokens


@pytest.fixture(scope="module")
def whole(smollm2_path: Path) -> list[int]:
    tokens = greedy(smollm2_path)
    assert len(tokens) == 16
    return tokens


@pytest.fixture(scope="module")
def folder(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 cut as llama.cpp's gguf-split cuts: keys in the first file, tensors in order."""
    folder = tmp_path_factory.mktemp("split")
    with GgufFile.open(smollm2_path) as file:
        tensors = list(file.tensors.values())
        assert len(tensors) == 272
        share = -(-len(tensors) // SHARDS)
        for number in range(SHARDS):
            keys = {} if number else dict(file.metadata.values)
            keys |= {"split.no": number, "split.count": SHARDS, "split.tensors.count": 272}
            part = tensors[number * share : (number + 1) * share]
            path = folder / f"SmolLM2-{number + 1:05d}-of-{SHARDS:05d}.gguf"
            write_file(path, keys, [source(tensor) for tensor in part])
    return folder


def source(tensor: QuantTensor) -> TensorSource:
    raw = tensor.blocks.numpy()
    return TensorSource(tensor.name, tensor.qtype, tensor.shape, lambda: [raw.data])


NAMED = ("SmolLM2-00001-of-00003.gguf", "SmolLM2-00003-of-00003.gguf", ".")


@pytest.mark.parametrize("named", NAMED)
def test_any_shard_and_the_folder_give_the_tokens_of_the_whole_file(folder, whole, named):
    assert greedy(folder / named) == whole


def test_a_missing_shard_ends_the_start_by_name(folder, serve, tmp_path):
    for number in (1, 3):
        name = f"SmolLM2-0000{number}-of-00003.gguf"
        (tmp_path / name).symlink_to(folder / name)
    server = serve(tmp_path / "SmolLM2-00003-of-00003.gguf", ready=False)
    assert server.wait_ended() == 1
    assert server.log.count("\n") == 1
    assert "SmolLM2-00002-of-00003" in server.log
