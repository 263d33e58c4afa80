"""A file that is no model ends the start at once, by name, before a port is open."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from luce_core.weights.gguf_writer import write_gguf
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

WEIGHT = {"blk.0.attn_q.weight": torch.ones(8, 8)}
LORA = {f"blk.0.attn_q.weight.lora_{part}": torch.ones(8, 8) for part in "ab"}


def byte_swapped(path: Path) -> None:
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))


def safetensors(path: Path) -> None:
    head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))


def cut_off(path: Path) -> None:
    raw = write_synthetic(path, SyntheticModel()).read_bytes()
    path.write_bytes(raw[: len(raw) * 7 // 10])


def without_head_count(path: Path) -> None:
    raw = write_synthetic(path, SyntheticModel()).read_bytes()
    key = b"llama.attention.head_count\x04"
    path.write_bytes(raw.replace(key, key.replace(b"head", b"heed")))


def endless_array(path: Path) -> None:
    key = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 4, 1 << 60)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key)


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "projector": (lambda p: write_gguf(p, "clip", {}, WEIGHT), "an image or audio projector"),
    "mmproj": (
        lambda p: write_gguf(p, "llama", {"general.type": "mmproj"}, WEIGHT),
        "an image or audio projector",
    ),
    "adapter": (
        lambda p: write_gguf(p, "llama", {"general.type": "adapter"}, LORA),
        "an adapter (LoRA), not a language model: merge it",
    ),
    "imatrix": (
        lambda p: write_gguf(p, "llama", {"general.type": "imatrix"}, WEIGHT),
        "an importance matrix",
    ),
    "vocabulary": (
        lambda p: write_gguf(p, "llama", {"tokenizer.ggml.tokens": ["a"]}, {}),
        "a vocabulary only, no weights",
    ),
    "draft": (lambda p: write_gguf(p, "dflash", {}, WEIGHT), "give it as --draft beside"),
    "big-endian": (byte_swapped, "a big-endian GGUF file"),
    "safetensors": (safetensors, "a safetensors file, not a GGUF model: convert"),
    "cut off": (cut_off, "it is cut off"),
    "endless array": (endless_array, "k: "),
    "no tokenizer": (
        lambda p: write_gguf(p, "llama", {}, WEIGHT),
        "tokenizer.ggml.",
    ),
    "folder": (lambda p: p.mkdir(), "holds no .gguf file"),
    "nothing": (lambda p: None, "does not exist"),
}


@pytest.fixture
def no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(self: object) -> None:
        raise AssertionError("the port was opened")

    monkeypatch.setattr("luce_core.serve.HttpServer.start", start)


@pytest.mark.usefixtures("no_port")
@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_file_is_named_in_a_line_or_two_before_a_port_is_open(luce, tmp_path, kind):
    write, said = WRONG[kind]
    path = tmp_path / "model.gguf"
    write(path)
    started = time.process_time()
    code, out, err = luce("serve", path, "--port", "0")
    assert time.process_time() - started < 1.0
    assert (code, out) == (1, "")
    assert err.startswith(f"luce serve: {path}: ")
    assert said in err
    assert len(err.splitlines()) <= 2
    if kind not in ("cut off", "endless array"):
        assert not any(word in err for word in ("corrupt", "truncated", "damaged", "cut off"))


@pytest.mark.usefixtures("no_port")
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("pkg:not_installed_here/m.gguf", "not_installed_here"),
        ("pkg:luce_core/m.gguf", "m.gguf"),
        ("pkg:luce_core/../pyproject.toml", "pyproject.toml"),
    ],
)
def test_a_package_file_that_is_not_there_is_named(luce, word, said):
    code, out, err = luce("serve", word)
    assert (code, out) == (1, "")
    assert said in err
    assert len(err.splitlines()) <= 2


def test_a_wrong_file_ends_the_process_without_a_traceback(luce_process, tmp_path):
    path = write_gguf(tmp_path / "lora.gguf", "llama", {"general.type": "adapter"}, LORA)
    code, out, err = luce_process("serve", path, "--port", "0")
    assert (code, out) == (1, "")
    assert err == (
        f"luce serve: {path}: general.type: this is an adapter (LoRA), not a language model: "
        "merge it into its base model and give the result\n"
    )


def test_a_key_that_the_engine_needs_is_named(luce, tmp_path):
    """The engine reads its keys when it loads: /health may already answer then."""
    path = tmp_path / "model.gguf"
    without_head_count(path)
    code, out, err = luce("serve", path, "--port", "0")
    assert (code, out) == (1, "")
    assert (
        err == f"luce serve: {path}: llama.attention.head_count: is missing: must be an integer\n"
    )


def test_a_cut_off_draft_is_refused_before_the_model_is_loaded(luce, install_plugin, tmp_path):
    """By an engine that takes drafts: llama refuses the flag itself."""
    install_plugin("drafty", DRAFTY)
    cut_off(tmp_path / "draft.gguf")
    target = write_synthetic(tmp_path / "target.gguf", SyntheticModel())
    words = ("serve", target, "--engine", "drafty", "--draft", tmp_path / "draft.gguf")
    code, out, err = luce(*words)
    assert (code, out) == (1, "")
    assert err.startswith(f"luce serve: {tmp_path / 'draft.gguf'}: ")
    assert "it is cut off" in err


DRAFTY = """
from luce_core.engine import EngineSpec, hookimpl
from luce_core.errors import LuceError

def build(context):
    raise AssertionError("the draft must be checked first")

@hookimpl
def luce_register_engines(register):
    register(EngineSpec(name="drafty", architectures=("drafty",), build=build,
        accepts=frozenset(
            {"draft", "draft_device", "draft_block_size", "draft_min_acceptance"})))
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--draft-block-size 4", "--draft-block-size needs --draft, which is not given"),
        ("--draft-min-acceptance 0.5", "--draft-min-acceptance needs --draft, which is not given"),
        (
            "--draft x.gguf --draft-device cuda:1",
            "--draft-device cuda:1: the draft runs on the model's device, which is cpu",
        ),
    ],
)
def test_draft_settings_without_effect_are_refused(luce, install_plugin, tmp_path, words, said):
    install_plugin("drafty", DRAFTY)
    target = write_synthetic(tmp_path / "target.gguf", SyntheticModel())
    code, out, err = luce("serve", target, "--engine", "drafty", *words.split())
    assert (code, out) == (1, "")
    assert err == f"luce serve: {said}\n"


def test_an_engine_gets_the_checked_draft_with_its_settings(luce, install_plugin, tmp_path):
    install_plugin("shows_draft", SHOWS_DRAFT)
    target = write_synthetic(tmp_path / "target.gguf", SyntheticModel())
    draft = write_gguf(tmp_path / "draft.gguf", "dflash", {}, WEIGHT)
    words = ("--draft", draft, "--draft-block-size", "4", "--draft-min-acceptance", "0.5")
    code, _, err = luce("serve", target, "--engine", "drafty", "--port", "0", *words)
    assert code == 1
    assert "block_size=4, min_acceptance=0.5" in err
    assert "kind='cpu'" in err


SHOWS_DRAFT = DRAFTY.replace(
    'AssertionError("the draft must be checked first")', "LuceError(str(context.draft))"
)
