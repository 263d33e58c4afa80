"""What is asked of a device before ops are bound on it."""

from __future__ import annotations

import torch

from luce_core.device import Device
from luce_core.errors import ConfigError


def require_device(device: Device) -> None:
    """ConfigError if this machine, or the installed torch, does not have the device."""
    if device.kind == "cpu":
        return
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind = "hip" if torch.version.hip else "cuda"
    if device.kind == kind and device.index < found:
        return
    there = ", ".join(f"{kind}:{index}" for index in range(found))
    raise ConfigError(
        f"device {device} is not there; torch {torch.__version__} finds: {there or 'no GPU'}"
    )


def activation_dtype(device: Device) -> torch.dtype:
    """What activations are on a device of this kind."""
    return torch.float32 if device.kind == "cpu" else torch.float16


def device_arch(device: Device) -> str:
    """`gfx1201`, `sm_90`; empty for a CPU, whose kernels choose at run time."""
    if device.kind == "cpu":
        return ""
    properties = torch.cuda.get_device_properties(device.index)
    if device.kind == "hip":
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"
