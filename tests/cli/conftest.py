"""Runs `luce` commands, and installs plugins that exist for one test only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from luce_core.cli import main
from luce_core.weights.synthetic import SyntheticModel, write_synthetic

LUCE = shutil.which("luce", path=Path(sys.executable).parent)


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in os.environ:
        if variable.startswith(("LUCE_", "DFLASH_")):
            monkeypatch.delenv(variable)


@pytest.fixture
def luce(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command in this process: quick, and an unexpected exception fails the test."""

    def run(*words: object) -> Outcome:
        try:
            code = main([str(word) for word in words])
        except SystemExit as done:  # argparse
            code = int(done.code or 0)
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def luce_process() -> Callable[..., Outcome]:
    """Run a command in a process of its own, as a shell would."""

    def run(*words: object, env: Mapping[str, str] | None = None) -> Outcome:
        assert LUCE is not None
        done = subprocess.run(
            [LUCE, *map(str, words)],
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=100,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def install_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], dict[str, str]]:
    """Install a module as a plugin, for this process and for those that get the returned
    environment. The name must be unique among all tests, since imported modules stay."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)

    def install(name: str, code: str) -> dict[str, str]:
        module = f"luce_plugin_{name}"
        (folder / f"{module}.py").write_text(code)
        info = folder / f"{module}-0.7.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 0.7\n")
        (info / "entry_points.txt").write_text(f"[luce]\n{name} = {module}\n")
        return {"PYTHONPATH": str(folder)}

    return install


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of architecture llama."""
    return write_synthetic(tmp_path_factory.mktemp("model") / "tiny.gguf", SyntheticModel())
