"""Published peak figures of the GPUs that the kernels are judged against, each with its source.

The matrix rate is that of float16 and bfloat16 without sparsity, summed in float32. What units do
in a clock is from GPUOpen, "Using the Matrix Cores of AMD RDNA 4 architecture GPUs"
(https://gpuopen.com/learn/using_matrix_core_amd_rdna4): float16 and bfloat16 operations 512 on
RDNA 3, 1024 on RDNA 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from luce_core.errors import ConfigError
from luce_core.ops.device_tools import DeviceLimits
from luce_core.ops.program import Rates
from luce_kernels_rocm.arch import Arch, arch_named

# AMD states no matrix rate of the Radeon 8060S. Its RDNA 3.5 has the matrix units of RDNA 3; 40
# compute units at up to 2.9 GHz: TechPowerUp, "AMD Debuts Ryzen AI Max Series 'Strix Halo' SoC"
# (https://www.techpowerup.com/330548), 6 January 2025.
_STRIX_HALO_MATRIX = 40 * 512 * 2.9e9

# AMD's page says 191 T: 64 compute units with 1024 operations in a clock at 2.92 GHz.
_R9700_MATRIX = 191e12

# NVIDIA's page says 1979 T with sparsity, which doubles it.
_H200_MATRIX = 1979e12 / 2


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
                matrix=_R9700_MATRIX,
                source=(
                    "AMD, Radeon AI PRO R9700, https://www.amd.com/en/products/graphics/"
                    "workstations/radeon-ai-pro/ai-9000-series/amd-radeon-ai-pro-r9700.html"
                ),
            ),
            _limits(
                "strix-halo",
                "AMD Ryzen AI Max+ 395 (Radeon 8060S)",
                memory=256e9,
                matrix=_STRIX_HALO_MATRIX,
                source=(
                    "memory: AMD, Ryzen AI Max+ 395, https://www.amd.com/en/products/processors/"
                    "laptop/ryzen/ai-300-series/amd-ryzen-ai-max-plus-395.html; matrix rate: 40 "
                    "units at 2.9 GHz with 512 operations in a clock by "
                    "https://gpuopen.com/learn/using_matrix_core_amd_rdna4"
                ),
            ),
            _limits(
                "h200",
                "NVIDIA H200 SXM",
                memory=4800e9,
                matrix=_H200_MATRIX,
                source=(
                    "NVIDIA, H200 GPU, https://www.nvidia.com/en-us/data-center/h200/, halved: "
                    "without sparsity"
                ),
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
