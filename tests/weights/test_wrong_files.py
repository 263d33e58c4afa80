"""A file that is no model is named for what it is, with what to do; it is not called damaged."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from luce_core.errors import ModelFileError
from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import write_gguf
from luce_core.weights.model_role import Role
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

WEIGHT = {"blk.0.attn_q.weight": torch.ones(8, 8)}


def refusal(path: Path, role: Role = "model") -> str:
    """The message with which the file is refused: one line that blames no complete file."""
    with pytest.raises(ModelFileError) as info:
        GgufFile.open(path, role=role)
    message = str(info.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert not any(word in message for word in ("corrupt", "truncated", "cut off", "damaged"))
    return message


def safetensors(path: Path) -> None:
    head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))


def pytorch_zip(path: Path) -> None:
    torch.save(WEIGHT, path)
    assert zipfile.is_zipfile(path)


def onnx(path: Path) -> None:
    path.write_bytes(b"\x08\x08\x12\x07pytorch\x1a\x05" + bytes(64))


FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    "safetensors": (safetensors, "a safetensors file, not a GGUF model: convert"),
    "pytorch": (pytorch_zip, "a zip archive, as PyTorch checkpoints are"),
    "pickle": (lambda path: path.write_bytes(b"\x80\x02}q\x00."), "a PyTorch pickle"),
    "onnx": (onnx, "an ONNX model"),
    "html": (lambda path: path.write_bytes(b"\n<!DOCTYPE html><html>404"), "a web page"),
    "lfs": (
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        "a git-lfs pointer, not the model, .*git lfs pull",
    ),
    "json": (lambda path: path.write_text('{"model_type": "llama"}'), "a JSON file"),
    "zeros": (lambda path: path.write_bytes(bytes(4096)), "a file of zeros"),
    "ggml": (lambda path: path.write_bytes(b"tjgg" + bytes(64)), "from before GGUF"),
    "text": (lambda path: path.write_text("hello world"), "unknown kind .*bytes 68 65 6c 6c"),
    "empty": (lambda path: path.touch(), "this file is empty"),
    "big-endian": (
        lambda path: path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0)),
        "version: this is a big-endian GGUF file",
    ),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_other_formats_are_named(kind: str, tmp_path: Path) -> None:
    write, said = FOREIGN[kind]
    path = tmp_path / "model.gguf"
    write(path)
    assert_said(refusal(path), said)


def assert_said(message: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(message)


NOT_MODELS: dict[str, tuple[str, dict[str, object], str]] = {
    "projector": ("clip", {"general.type": "mmproj"}, "general.type: this is an image or audio"),
    "old projector": ("clip", {}, "general.architecture: this is an image or audio projector"),
    "adapter": ("llama", {"general.type": "adapter"}, r"an adapter \(LoRA\), not a language model"),
    "imatrix": ("imatrix", {"general.type": "imatrix"}, "an importance matrix"),
}


@pytest.mark.parametrize("role", ["model", "draft"])
@pytest.mark.parametrize("kind", NOT_MODELS)
def test_gguf_files_of_other_use_are_named(kind: str, role: Role, tmp_path: Path) -> None:
    arch, metadata, said = NOT_MODELS[kind]
    path = write_gguf(tmp_path / "other.gguf", arch, metadata, WEIGHT)
    assert_said(refusal(path, role), said)
    with GgufFile.open(path, role="any") as file:
        assert file.architecture == arch


def test_vocabulary_without_weights_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "vocab.gguf", "llama", {"tokenizer.ggml.tokens": ["a"]}, {})
    assert_said(refusal(path), "tensor count: this file holds a vocabulary only")


@pytest.mark.parametrize("arch", ["dflash", "dflash-draft", "qwen35-dflash-draft"])
def test_a_draft_given_as_the_model_is_sent_to_its_option(arch: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "draft.gguf", arch, {}, WEIGHT)
    assert_said(refusal(path), f"'{arch}' is a draft, not a model: give it as --draft")
    with GgufFile.open(path, role="draft") as file:
        assert file.architecture == arch


def test_a_file_without_architecture_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", {}, WEIGHT)
    path.write_bytes(path.read_bytes().replace(b"general.architecture", b"general.architectura"))
    assert_said(refusal(path), "general.architecture: is missing")


def test_a_download_cut_off_at_70_percent_says_so(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", SyntheticModel())
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) * 7 // 10])
    with pytest.raises(ModelFileError, match=r"\(70% of it is here\): it is cut off"):
        GgufFile.open(path, role="draft")


def test_missing_and_unreadable_paths_are_named(tmp_path: Path) -> None:
    assert_said(refusal(tmp_path / "none.gguf"), "file: cannot be opened: No such file")
    assert_said(refusal(Path("/dev/null")), "file: must be a regular file")
    assert_said(refusal(tmp_path), "folder: holds no .gguf file")
