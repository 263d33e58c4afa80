"""The kernels of this folder's tests are interpreted: there need not be a GPU. What is compiled
ahead of time is compiled by processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
from luce_kernels_rocm.interpreter import use_interpreter
from luce_kernels_rocm.launch import Launch

use_interpreter()

Compile = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many programs each launch would have; nothing runs."""
    found: list[int] = []
    monkeypatch.setattr(Launch, "__call__", lambda self, grid, *args: found.append(prod(grid)))
    return found


@pytest.fixture(scope="session")
def compile_ahead(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Reports of the kernels of an architecture; compiled ones stay in pytest's cache folder."""
    cache = Path(pytestconfig.cache.mkdir("luce-kernels-rocm"))

    def compile_for(arch: str, *options: str) -> list[dict[str, Any]]:
        report = tmp_path_factory.mktemp("aot") / "report.json"
        command = [sys.executable, "-W", "error", "-m", "luce_kernels_rocm.aot", arch, *options]
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        subprocess.run(
            [*command, "--cache", str(cache), "--json", str(report)],
            env=environment,
            check=True,
            timeout=1800,
        )
        reports: list[dict[str, Any]] = json.loads(report.read_text())
        return reports

    return compile_for
