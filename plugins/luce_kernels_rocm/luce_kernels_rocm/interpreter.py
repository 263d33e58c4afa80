"""The kernels on CPU tensors, by triton's interpreter: for tests, hundreds of times slower.

bf16 arithmetic is wrong there (triton 3.7 and 3.9 compute on the raw bits), so activations are
float32 or float16.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module

import torch

from luce_core.errors import ConfigError
from luce_kernels_rocm.interpreter_savings import save
from luce_kernels_rocm.offers import register_kernels

DTYPES = (torch.float32, torch.float16)


def use_interpreter() -> None:
    """From now on triton kernels of this process are interpreted. ConfigError if some of this
    plugin were loaded to be compiled.

    What `triton.jit` makes is decided when it runs, for triton's own functions too; so a triton
    that other packages have imported is imported again, all but its native half.
    """
    if "triton" in sys.modules and import_module("triton").knobs.runtime.interpret:
        return
    loaded = sorted(name for name in sys.modules if name.startswith("luce_kernels_rocm.ops."))
    if loaded:
        raise ConfigError(f"too late for the interpreter: {', '.join(loaded)} are loaded")
    os.environ["TRITON_INTERPRET"] = "1"
    for name in list(sys.modules):
        if name.partition(".")[0] == "triton" and not name.startswith("triton._C"):
            del sys.modules[name]
    import_module("triton")
    save(import_module("triton.runtime.interpreter"))


def register_interpreted(register: Callable[..., None]) -> None:
    """Offer the kernels on CPUs, interpreted."""
    use_interpreter()
    register_kernels(register, devices=("cpu",), dtypes=DTYPES)
