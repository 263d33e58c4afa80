"""What a plugin of GPU kernels offers beside them: how fast they could be, and how to tune them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from luce_core.errors import ConfigError

if TYPE_CHECKING:
    from luce_core.device import Device
    from luce_core.ops.program import Rates, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """A device's published figures. `source` says where they are published."""

    name: str
    title: str
    rates: Rates
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """Calls of an op in a step: what one of them cannot do without (bytes to and from memory,
    operations), and the bytes that the kernel's programs ask memory for, None if there is no
    kernel. Caches may serve what is asked for again."""

    op: str
    what: str
    calls: int
    least: Work
    moved_bytes: int | None

    @property
    def moved_over_least(self) -> float | None:
        return None if self.moved_bytes is None else self.moved_bytes / self.least.read_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """A step of a model, op by op."""

    model: str
    step: str
    ops: tuple[OpCost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The steps on devices. Tiles are those of the first device."""

    devices: tuple[DeviceLimits, ...]
    steps: tuple[StepCost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTools:
    """`roofline(devices, model)` takes names, and no model for all it knows. `tune(model,
    device, only, path, tell)` times candidates for the layers of a model file on a device that is
    there, of kernels that have `only` in their name, writes the table that `--kernel-table` takes,
    and tells how it goes in lines. Both raise ConfigError for what they do not know."""

    provider: str
    roofline: Callable[[tuple[str, ...], str | None], Roofline]
    tune: Callable[[Path, Device, str, Path, Callable[[str], None]], None]


def tools_of(found: Mapping[str, DeviceTools], provider: str | None) -> DeviceTools:
    """Those of a provider, or of the only one. ConfigError says which there are."""
    if not found:
        raise ConfigError("no plugin has tools for GPU kernels: try pip install luce-kernels-rocm")
    there = ", ".join(found)
    if provider is not None:
        if provider not in found:
            raise ConfigError(f"--provider {provider}: there is: {there}")
        return found[provider]
    if len(found) > 1:
        raise ConfigError(f"several plugins have tools for GPU kernels: --provider, of {there}")
    return next(iter(found.values()))
