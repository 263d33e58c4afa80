"""A triton driver for a GPU that is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from luce_kernels_rocm.arch import ARCHES, Arch

MOST_THREADS = 1024


class TargetDriver(DriverBase):  # type: ignore[misc]  # triton's base is untyped
    """Compiles for an architecture; a launch does nothing."""

    def __init__(self, arch: Arch) -> None:
        super().__init__()
        self._arch = arch
        # triton keeps compiled kernels by device number.
        self._number = list(ARCHES).index(arch.name)
        self.utils = self

    @classmethod
    def is_active(cls) -> bool:
        return False

    def get_current_target(self) -> GPUTarget:
        return GPUTarget(self._arch.backend, self._arch.triton_arch, self._arch.wave)

    def get_current_device(self) -> int:
        return self._number

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise AssertionError("there is no device to measure")

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise AssertionError("there is nothing to launch")

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self._arch.lds_bytes}

    def load_binary(
        self, name: str, kernel: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        """(module, function, registers, spills, threads): nothing is loaded."""
        return 1, 1, 0, 0, MOST_THREADS

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return _launch_nothing


def _launch_nothing(*args: Any) -> None:
    """In place of a launch."""
