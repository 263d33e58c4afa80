"""The plugin as a user installs it, and a model file that it can serve."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from luce_core.weights.gguf_file import GgufFile
from luce_core.weights.gguf_writer import write_gguf
from luce_core.weights.synthetic_vocab import tokenizer_metadata

SOURCE = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds nothing but the installed plugin; pip builds it from a copy."""
    source = tmp_path_factory.mktemp("source") / "minimal_engine"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    target = tmp_path_factory.mktemp("target")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    subprocess.run([*pip, *options, str(source)], check=True, timeout=100)
    return target


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    metadata = {"minimal.context_length": 256, **tokenizer_metadata(320, "smollm")}
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return write_gguf(path, "minimal", metadata, {"token_embd.weight": torch.zeros(1, 1)})


@pytest.fixture(scope="module")
def gguf(model_path: Path) -> GgufFile:
    return GgufFile.open(model_path)
