"""A model file is mapped, not read, and says the same as the `gguf` package's reader."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import gguf
import pytest
import torch

from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.quant_types import QuantTensor
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

PROC = Path("/proc/self")
needs_proc = pytest.mark.skipif(not PROC.exists(), reason="reads /proc")


def test_metadata_and_tensors_equal_those_of_the_gguf_reader(
    smollm: GgufFile, smollm_path: Path
) -> None:
    theirs = gguf.GGUFReader(smollm_path)
    ours = smollm.metadata
    fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.keys() == fields.keys()
    for key, field in fields.items():
        if field.types[0] is not gguf.GGUFValueType.ARRAY:
            assert ours.values[key] == field.contents()
        elif field.types[-1] is gguf.GGUFValueType.STRING:
            assert list(ours.strings(key)) == field.contents()
        else:
            assert list(ours.ints(key)) == field.contents()
    assert list(smollm.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = smollm.tensors[tensor.name]
        assert mine.qtype.name == tensor.tensor_type.name
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert torch.equal(mine.blocks, torch.from_numpy(tensor.data.view("u1").copy()))
    assert smollm.total_bytes == sum(tensor.n_bytes for tensor in theirs.tensors)


def test_facts_of_smollm(smollm: GgufFile, smollm_path: Path) -> None:
    assert smollm.architecture == "llama"
    assert smollm.path == smollm_path
    assert smollm.paths == (smollm_path,)
    assert len(smollm.tensors) == 272
    assert "output.weight" not in smollm.tensors
    assert smollm.tensors["token_embd.weight"].qtype.name == "Q8_0"
    assert smollm.tensors["token_embd.weight"].shape == (49152, 576)
    assert smollm.metadata.int("tokenizer.ggml.eos_token_id") == 2


def test_smollm_opens_quickly(smollm_path: Path) -> None:
    start = time.process_time()
    with GgufFile.open(smollm_path) as file:
        assert len(file.metadata.strings("tokenizer.ggml.merges")) == 48900
    assert time.process_time() - start < 0.5


def memory_kib(field: str) -> int:
    lines = (PROC / "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


@needs_proc
def test_opening_maps_the_file_and_reads_only_what_is_used(tmp_path: Path) -> None:
    model = SyntheticModel(width=1024, ff=4096, layers=4, vocab=8192, heads=8)
    path = write_synthetic(tmp_path / "m.gguf", model)
    size_kib = path.stat().st_size // 1024
    gc.collect()
    before = memory_kib("Rss")
    with GgufFile.open(path) as file:
        assert memory_kib("Rss") - before < size_kib // 4
        copied = memory_kib("Anonymous")
        total = sum(int(tensor.blocks.view(-1)[::512].sum()) for tensor in file.tensors.values())
        assert total > 0
        assert memory_kib("Anonymous") - copied < size_kib // 4


def resident_kib(path: Path) -> int:
    """Memory of a file's map."""
    found, total = False, 0
    for line in (PROC / "smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            found = line.endswith(str(path))
        elif found and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@needs_proc
def test_released_pages_cost_no_memory_and_read_the_same(tmp_path: Path) -> None:
    model = SyntheticModel(width=512, ff=2048, layers=2, vocab=4096, heads=8)
    path = write_synthetic(tmp_path / "released.gguf", model)
    size_kib = path.stat().st_size // 1024
    with GgufFile.open(path) as file:
        before = {name: tensor.blocks.clone() for name, tensor in file.tensors.items()}
        assert resident_kib(path) > 0.9 * size_kib
        for tensor in file.tensors.values():
            tensor.release_pages()
        assert resident_kib(path) < 0.1 * size_kib
        for name, tensor in file.tensors.items():
            assert torch.equal(tensor.blocks, before[name])
        file.release_pages()
        assert resident_kib(path) < 8


def test_a_tensor_in_memory_has_no_pages_to_release() -> None:
    values = torch.randn(64, 4096)
    tensor = QuantTensor.from_values("w", values, "F32")
    tensor.release_pages()
    assert torch.equal(tensor.dequantize(), values)


@needs_proc
def test_close_lets_go_of_the_map_but_not_of_tensors_in_use(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "closing.gguf", SyntheticModel())
    file = GgufFile.open(path)
    kept = file.tensors["blk.0.attn_q.weight"]
    expected = kept.dequantize()
    path.unlink()
    file.close()
    file.close()
    assert not file.tensors
    assert torch.equal(kept.dequantize(), expected)
    assert "closing.gguf" in (PROC / "maps").read_text()
    del kept
    gc.collect()
    assert "closing.gguf" not in (PROC / "maps").read_text()


def test_writing_to_a_tensor_never_reaches_the_file(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", SyntheticModel())
    before = path.read_bytes()
    with GgufFile.open(path) as file:
        file.tensors["blk.0.attn_q.weight"].blocks.zero_()
    assert path.read_bytes() == before


def test_the_folder_of_one_file_opens_that_file(tmp_path: Path, smollm_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("a model")
    link = tmp_path / "best-of-breed.gguf"
    link.symlink_to(smollm_path)
    with GgufFile.open(tmp_path) as file:
        assert file.paths == (link,)
