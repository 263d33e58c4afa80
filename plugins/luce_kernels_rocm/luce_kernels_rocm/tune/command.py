"""The whole of `luce tune`, given a device that is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from luce_core.device import Device
from luce_core.errors import ConfigError
from luce_core.weights.gguf_file import GgufFile
from luce_kernels_rocm.arch import Arch
from luce_kernels_rocm.tiles import write_table
from luce_kernels_rocm.tune.choose import Timer, choose_all
from luce_kernels_rocm.tune.layers import candidates_of


def tune(model: Path, device: Device, only: str, path: Path, tell: Callable[[str], None]) -> None:
    """Time the layers of a model file on the device, and write the table."""
    if device.kind == "cpu":
        raise ConfigError("these kernels run on GPUs: name one, as hip:0 or cuda:0")
    # Both need a device, or triton.
    from luce_kernels_rocm.arch import arch_of
    from luce_kernels_rocm.timing import EventClock
    from luce_kernels_rocm.tune.device_timer import DeviceTimer

    place = torch.device(device.torch_name)
    timer = DeviceTimer(place, EventClock(place))
    title = torch.cuda.get_device_name(place)
    tune_with(timer, model, arch_of(place), title, only=only, path=path, tell=tell)


def tune_with(
    timer: Timer,
    model: Path,
    arch: Arch,
    title: str,
    *,
    only: str,
    path: Path,
    tell: Callable[[str], None],
) -> None:
    """As `tune`, with any timer. ConfigError before the work if the table could not be written."""
    if not path.parent.is_dir():
        raise ConfigError(f"kernel table {path}: there is no folder {path.parent}")
    with GgufFile.open(model) as gguf:
        everything = candidates_of(gguf, arch, only)
    if not everything:
        raise ConfigError(f"{model.name}: no layer of it has a kernel with {only!r} in its name")
    tell(f"{title} ({arch.name}): {len(everything)} layers")
    found = choose_all(everything, timer, tell)
    write_table(path, arch.name, title, found)
    tell(f"{len(found)} of {len(everything)} tiles differ from the usual ones: {path}")
