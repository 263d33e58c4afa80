"""Copies between the two devices, counted."""

from __future__ import annotations

import torch
from torch import Tensor

from luce_core.device import Device
from luce_core.errors import ConfigError
from luce_core.ops.registry import OpBinder


class Link:
    """Moves rows from one device to the other, all in one copy if `batched`, else each in its own.

    Without `direct`, rows go from one GPU to another by way of the host. `copies` counts what was
    moved between two memories, host memory included; rows are copied even where both devices are
    the CPU. Used by the engine's thread only.
    """

    def __init__(self, *, batched: bool, direct: bool) -> None:
        self.batched = batched
        self._direct = direct
        self.copies = 0

    def rows(self, source: Tensor, wanted: Tensor | None, to: OpBinder) -> Tensor:
        """The `wanted` rows of source [T, width] (None: all, in order) on the device of `to`, at
        its activation dtype: [R, width]."""
        if self.batched:
            chosen = source if wanted is None else source.index_select(0, wanted)
            out = torch.empty(chosen.shape, dtype=to.dtype, device=to.device)
            self._copy(chosen, out)
            return out
        places = range(len(source)) if wanted is None else wanted.tolist()
        out = torch.empty((len(places), source.shape[1]), dtype=to.dtype, device=to.device)
        for target, place in enumerate(places):
            self._copy(source[place], out[target])
        return out

    def to_host(self, x: Tensor) -> Tensor:
        return x if x.is_cpu else self._moved(x, torch.device("cpu"))

    def from_host(self, x: Tensor, device: torch.device) -> Tensor:
        return x if device.type == "cpu" else self._moved(x, device)

    def _moved(self, x: Tensor, device: torch.device) -> Tensor:
        self.copies += 1
        return x.to(device)

    def _copy(self, source: Tensor, out: Tensor) -> None:
        if not self._direct:
            source = self._moved(source, torch.device("cpu"))
        self.copies += 1
        out.copy_(source)


def copies_directly(near: Device, far: Device, *, peer_access: bool) -> bool:
    """Whether rows go straight from one device to the other; ConfigError if `peer_access` asks for
    that and the devices cannot."""
    if near == far:
        return True
    both_gpus = "cpu" not in (near.kind, far.kind)
    if not peer_access:
        return not both_gpus
    if both_gpus and all(
        torch.cuda.can_device_access_peer(a.index, b.index) for a, b in ((near, far), (far, near))
    ):
        return True
    raise ConfigError(f"--peer-access: {near} and {far} cannot copy directly to each other")
