"""Any file of a split model, or its folder, is the whole model; a wrong set is refused."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from luce_core.errors import ModelFileError
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import TensorSource, write_file
from luce_core.weights.quant_types import QuantTensor
from luce_core.weights.synthetic import SyntheticModel, write_synthetic


def split(source: GgufFile, folder: Path, stem: str, count: int) -> list[Path]:
    """Cut as gguf-split does: keys in the first file, `split.*` in all, tensors in order."""
    folder.mkdir(exist_ok=True)
    tensors = list(source.tensors.values())
    share = -(-len(tensors) // count)
    paths = []
    for number in range(count):
        own = {} if number else dict(source.metadata.values)
        own |= {"split.no": number, "split.count": count, "split.tensors.count": len(tensors)}
        path = folder / f"{stem}-{number + 1:05d}-of-{count:05d}.gguf"
        part = tensors[number * share : (number + 1) * share]
        paths.append(write_file(path, own, [as_source(tensor) for tensor in part]))
    return paths


def as_source(tensor: QuantTensor) -> TensorSource:
    raw = tensor.blocks.numpy()
    return TensorSource(tensor.name, tensor.qtype, tensor.shape, lambda: [raw.data])


def same_tensors(ours: Mapping[str, QuantTensor], theirs: Mapping[str, QuantTensor]) -> bool:
    return list(ours) == list(theirs) and all(
        ours[name].qtype is theirs[name].qtype and torch.equal(ours[name].blocks, tensor.blocks)
        for name, tensor in theirs.items()
    )


@pytest.fixture(scope="module")
def smollm_shards(smollm: GgufFile, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return split(smollm, tmp_path_factory.mktemp("split"), "SmolLM2-Q4_1", 3)


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    with GgufFile.open(write_synthetic(tmp_path / "whole.gguf", SyntheticModel())) as whole:
        return split(whole, tmp_path / "set", "tiny", 3)


@pytest.mark.parametrize("given", [0, 1, 2, "folder"])
def test_any_shard_or_the_folder_is_the_whole_model(
    given: int | str, smollm: GgufFile, smollm_shards: list[Path]
) -> None:
    path = smollm_shards[0].parent if given == "folder" else smollm_shards[int(given)]
    with GgufFile.open(path) as file:
        assert file.paths == tuple(smollm_shards)
        assert file.path == smollm_shards[0]
        assert file.total_bytes == smollm.total_bytes
        assert len(file.tensors) == 272
        assert same_tensors(file.tensors, smollm.tensors)
        assert file.architecture == "llama"
        assert file.metadata.strings("tokenizer.ggml.tokens") == smollm.metadata.strings(
            "tokenizer.ggml.tokens"
        )


@pytest.mark.parametrize("given", [0, 2, "folder"])
def test_a_missing_shard_is_named_quickly(given: int | str, shards: list[Path]) -> None:
    shards[1].unlink()
    path = shards[0].parent if given == "folder" else shards[int(given)]
    start = time.process_time()
    with pytest.raises(ModelFileError, match=r"1 of 3 files are missing: tiny-00002-of-00003"):
        GgufFile.open(path)
    assert time.process_time() - start < 1


def test_a_folder_without_the_first_shard_names_it(shards: list[Path]) -> None:
    shards[0].unlink()
    with pytest.raises(ModelFileError, match=r"1 of 3 files are missing: tiny-00001-of-00003"):
        GgufFile.open(shards[0].parent)


@pytest.mark.parametrize("count", [None, 0, 1])
@pytest.mark.parametrize(
    "name", ["x-00001-of-00001.gguf", "best-of-breed.gguf", "y-00002-of-00003.gguf"]
)
def test_a_name_alone_makes_no_split_model(name: str, count: int | None, tmp_path: Path) -> None:
    source = write_synthetic(tmp_path / "source.gguf", SyntheticModel())
    with GgufFile.open(source) as whole:
        extra = {} if count is None else {"split.count": count, "split.no": 0}
        tensors = [as_source(tensor) for tensor in whole.tensors.values()]
        write_file(tmp_path / name, {**whole.metadata.values, **extra}, tensors)
    with GgufFile.open(tmp_path / name) as file:
        assert file.paths == (tmp_path / name,)


def test_a_renamed_shard_is_told_its_name(shards: list[Path]) -> None:
    renamed = shards[0].rename(shards[0].with_name("model.gguf"))
    with pytest.raises(ModelFileError, match=r"one of 3 files.*-NNNNN-of-00003\.gguf"):
        GgufFile.open(renamed)


def test_two_shards_with_exchanged_names_are_refused(shards: list[Path]) -> None:
    spare = shards[1].with_name("spare")
    shards[1].rename(spare)
    shards[2].rename(shards[1])
    spare.rename(shards[2])
    with pytest.raises(ModelFileError, match=r"split\.no: must be one of 1, got 2"):
        GgufFile.open(shards[0])


@pytest.mark.parametrize(
    ("stranger", "field"),
    [
        (
            SyntheticModel(qtype="Q4_1"),
            r"tiny-00002-of-00003\.gguf: tensors 'blk\.N\..*Q4_1 .* here and Q8_0",
        ),
        (SyntheticModel(width=128), "row length 128 here and Q8_0 of row length 64"),
        (SyntheticModel(layers=3), r"split\.tensors\.count: must be one of 20, got 29"),
        (SyntheticModel(arch="qwen3"), r"split\.tensors\.count"),
    ],
)
def test_a_shard_of_another_model_is_refused(
    stranger: SyntheticModel, field: str, shards: list[Path], tmp_path: Path
) -> None:
    with GgufFile.open(write_synthetic(tmp_path / "stranger.gguf", stranger)) as other:
        others = split(other, tmp_path / "other", "tiny", 3)
    shutil.copy(others[1], shards[1])
    for path in (shards[0], shards[1]):
        with pytest.raises(ModelFileError, match=field):
            GgufFile.open(path)


def test_mixed_types_per_layer_are_no_stranger(tmp_path: Path) -> None:
    """As quantisers do: some layers of some roles have more bits."""
    types = {f"blk.{layer}.{role}.weight": "Q5_1" for layer in (3, 4) for role in ("attn_v",)}
    types |= {"blk.4.ffn_down.weight": "F16", "token_embd": "F16"}
    model = SyntheticModel(layers=5, types=types)
    with GgufFile.open(write_synthetic(tmp_path / "m.gguf", model)) as whole:
        paths = split(whole, tmp_path / "set", "mixed", 5)
        with GgufFile.open(paths[4]) as file:
            assert same_tensors(file.tensors, whole.tensors)


def test_a_shard_cut_off_is_refused_by_its_own_name(shards: list[Path]) -> None:
    shards[2].write_bytes(shards[2].read_bytes()[:-100])
    with pytest.raises(
        ModelFileError, match=r"tiny-00003-of-00003\.gguf: tensor .*: it is cut off"
    ):
        GgufFile.open(shards[0])


def test_a_folder_of_several_models_lists_them(shards: list[Path], tmp_path: Path) -> None:
    folder = shards[0].parent
    write_synthetic(folder / "alone.gguf", SyntheticModel())
    with pytest.raises(
        ModelFileError, match=r"holds 2 models, give one of: alone\.gguf, tiny-00001-of-00003\.gguf"
    ):
        GgufFile.open(folder)
