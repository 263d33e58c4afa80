"""The GPUs that kernels are compiled and configured for, by the name that the driver gives.

Sources: wave size, LDS and compute units of AMD's GPUs from ROCm's "AMD GPU specifications"
(https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html), matrix instructions and registers
from LLVM's "User Guide for AMDGPU Backend" (https://llvm.org/docs/AMDGPUUsage.html) and the
"RDNA4" and "RDNA3" instruction set guides
(https://docs.amd.com/v/u/en-US/rdna4-instruction-set-architecture). Shared memory of NVIDIA's from
the CUDA C++ Programming Guide's table of compute capabilities
(https://docs.nvidia.com/cuda/cuda-c-programming-guide/). Bandwidths, and units of NVIDIA's, stand
beside the entries with their makers' pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import torch

from luce_core.errors import ConfigError

KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Arch:
    """One GPU architecture. `units` and `gigabytes_per_second` are of its usual product, for
    configurations and first estimates; measured figures come from the device at hand.

    `lds_bytes` is what one work group may use (shared memory on CUDA), `matrix` the family of
    matrix instructions and empty if there are none.
    """

    name: str
    backend: str  # hip or cuda, as triton names it
    wave: int
    lds_bytes: int
    matrix: str
    units: int
    gigabytes_per_second: int

    @property
    def triton_arch(self) -> str | int:
        """What triton calls it: `gfx1201`, 90."""
        return self.name if self.backend == "hip" else int(self.name.removeprefix("sm_"))


def _amd(name: str, *, units: int, bandwidth: int, matrix: str = "wmma", wave: int = 32) -> Arch:
    return Arch(
        name=name,
        backend="hip",
        wave=wave,
        lds_bytes=64 * KIB,
        matrix=matrix,
        units=units,
        gigabytes_per_second=bandwidth,
    )


def _nvidia(name: str, *, lds_kib: int, units: int, bandwidth: int) -> Arch:
    return Arch(
        name=name,
        backend="cuda",
        wave=32,
        lds_bytes=lds_kib * KIB,
        matrix="mma",
        units=units,
        gigabytes_per_second=bandwidth,
    )


ARCHES: Mapping[str, Arch] = MappingProxyType(
    {
        arch.name: arch
        for arch in (
            # Radeon AI PRO R9700 and Ryzen AI Max+ 395: as in roofline/devices.py.
            _amd("gfx1201", units=64, bandwidth=640),
            _amd("gfx1151", units=40, bandwidth=256),
            # Radeon RX 7900 XTX: https://www.amd.com/en/products/graphics/desktops/radeon/
            # 7000-series/amd-radeon-rx-7900xtx.html
            _amd("gfx1100", units=96, bandwidth=960),
            # A100 80 GB SXM: https://www.nvidia.com/en-us/data-center/a100/
            _nvidia("sm_80", lds_kib=163, units=108, bandwidth=2039),
            # H100 SXM: https://www.nvidia.com/en-us/data-center/h100/
            _nvidia("sm_90", lds_kib=227, units=132, bandwidth=3350),
            # RTX 5090: https://www.nvidia.com/en-us/geforce/graphics-cards/50-series/rtx-5090/
            _nvidia("sm_120", lds_kib=99, units=170, bandwidth=1792),
        )
    }
)

# Tests run the kernels in triton's interpreter, which has no waves and no limits.
INTERPRETER = Arch(
    name="interpreter",
    backend="cpu",
    wave=1,
    lds_bytes=64 * KIB,
    matrix="",
    units=1,
    gigabytes_per_second=1,
)


def arch_named(name: str) -> Arch:
    """An architecture by name; ConfigError lists the known ones."""
    if name not in ARCHES:
        raise ConfigError(f"unknown GPU architecture {name!r}: known are {', '.join(ARCHES)}")
    return ARCHES[name]


@cache
def arch_of(device: torch.device) -> Arch:
    """The architecture of a device that kernels run on.

    One that the table does not list is taken for its nearest listed relative (the same backend,
    the greatest name that is not above it), under its own name. CPU tensors belong to the
    interpreter, or to the target that kernels are being compiled for ahead of time.
    """
    import triton

    if device.type == "cpu" and triton.knobs.runtime.interpret:
        return INTERPRETER
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        return arch_of_target(triton.runtime.driver.active.get_current_target())


def arch_of_target(target: Any) -> Arch:
    """The architecture of a triton GPUTarget; see `arch_of` for unlisted ones."""
    is_cuda = target.backend == "cuda"
    name = f"sm_{target.arch}" if is_cuda else str(target.arch).partition(":")[0]
    if name in ARCHES:
        return ARCHES[name]
    relatives = sorted(
        (arch for arch in ARCHES.values() if arch.backend == target.backend), key=_order
    )
    if not relatives:
        raise ConfigError(f"no kernels for {target.backend}: known are {', '.join(ARCHES)}")
    below = [arch for arch in relatives if _order_of(name) >= _order(arch)]
    like = below[-1] if below else relatives[0]
    return Arch(
        name=name,
        backend=target.backend,
        wave=target.warp_size,
        lds_bytes=like.lds_bytes,
        matrix="mfma" if name.startswith("gfx9") else like.matrix,
        units=like.units,
        gigabytes_per_second=like.gigabytes_per_second,
    )


def _order(arch: Arch) -> int:
    return _order_of(arch.name)


def _order_of(name: str) -> int:
    """gfx1100 < gfx1151 < gfx1201 and sm_80 < sm_90 < sm_120; steppings are hexadecimal."""
    return int(name.removeprefix("gfx"), 16) if name.startswith("gfx") else int(name[3:])
