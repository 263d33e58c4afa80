"""The kernels stand ready for both GPU kinds and cost a process without a GPU nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict

import pytest
import torch
from luce_kernels_rocm import luce_register_kernels, offers

from luce_core.errors import PluginError
from luce_core.ops.core_ops import core_registry


def test_every_core_op_has_a_kernel_for_hip_and_cuda() -> None:
    registry = core_registry()
    luce_register_kernels(registry.register_kernel)
    found: dict[str, set[str]] = defaultdict(set)
    for op in registry.specs:
        for kernel in registry.kernels(op):
            if kernel.provider == "luce_kernels_rocm":
                found[kernel.device].add(op)
                assert torch.bfloat16 in kernel.dtypes
    assert found["hip"] == found["cuda"]
    assert found["hip"] <= set(registry.specs)


def test_registering_imports_neither_triton_nor_a_kernel() -> None:
    program = (
        "import sys; from luce_kernels_rocm import luce_register_kernels;"
        "luce_register_kernels(lambda *args, **options: None);"
        "print([n for n in sys.modules if n == 'triton' or '.ops.' in n and 'rocm' in n])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_without_triton_the_plugin_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "find_spec", lambda name: None)
    with pytest.raises(PluginError, match="needs triton"):
        luce_register_kernels(lambda *args, **options: None)


def test_kernels_that_were_loaded_to_be_compiled_cannot_be_interpreted() -> None:
    program = (
        "import luce_kernels_rocm.ops.rms_norm\n"
        "from luce_kernels_rocm.interpreter import use_interpreter\n"
        "use_interpreter()"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert "too late for the interpreter: luce_kernels_rocm.ops.rms_norm" in done.stderr
