"""Published peak figures of the GPUs that the kernels are judged against.

The matrix rate is that of float16 and bfloat16 without sparsity, summed in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from luce_core.errors import ConfigError
from luce_core.ops.device_tools import DeviceLimits
from luce_core.ops.program import Rates
from luce_kernels_rocm.arch import Arch, arch_named

# AMD, "How to accelerate AI applications on RDNA 3 using WMMA": float16 and bfloat16 operations of
# a compute unit in a clock; RDNA 3.5 has the same units. Radeon 8060S: 40 units at 2.9 GHz.
_STRIX_HALO_MATRIX = 40 * 512 * 2.9e9


def _limits(name: str, title: str, *, memory: float, matrix: float, source: str) -> DeviceLimits:
    # No kernel here multiplies int8; with 1 such work would still take its time.
    rates = Rates(read_bytes=memory, int8_operations=matrix, float_operations=matrix)
    return DeviceLimits(name=name, title=title, rates=rates, source=source)


DEVICES: Mapping[str, DeviceLimits] = MappingProxyType(
    {
        limits.name: limits
        for limits in (
            _limits(
                "r9700",
                "AMD Radeon AI PRO R9700",
                memory=640e9,
                matrix=191e12,
                source="AMD's product page",
            ),
            _limits(
                "strix-halo",
                "AMD Ryzen AI Max+ 395 (Radeon 8060S)",
                memory=256e9,
                matrix=_STRIX_HALO_MATRIX,
                source="AMD's product page; 512 operations a unit and clock by AMD's WMMA guide",
            ),
            _limits(
                "h200",
                "NVIDIA H200 SXM",
                memory=4800e9,
                matrix=989e12,
                source="NVIDIA's data sheet, without sparsity",
            ),
        )
    }
)

_ARCH_OF: Mapping[str, str] = MappingProxyType(
    {"r9700": "gfx1201", "strix-halo": "gfx1151", "h200": "sm_90"}
)


def device_limits(name: str) -> DeviceLimits:
    """By name; ConfigError lists the known ones."""
    if name not in DEVICES:
        raise ConfigError(f"unknown device {name!r}: figures are known of {', '.join(DEVICES)}")
    return DEVICES[name]


def device_arch(name: str) -> Arch:
    return arch_named(_ARCH_OF[name])
