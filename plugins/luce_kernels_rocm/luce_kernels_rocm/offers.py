"""What the plugin registers. An op's host function is `luce_kernels_rocm.ops.<op>.<op>`, or
that of this name in another module of `ops`; it and triton are imported when it is first called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from luce_core.errors import PluginError
from luce_kernels_rocm.offer_tables import CHOSEN_OFFERS, CORE_OFFERS, MODEL_OFFERS

PRIORITY = 100
# Of kernels that only an override chooses: below the usual one, which is always there.
CHOSEN_PRIORITY = 50
GPU_KINDS = ("hip", "cuda")
# What engines compute in on a GPU, and what is compiled ahead of time.
GPU_DTYPES = (torch.float16, torch.bfloat16)


class LateKernel:
    """A host function by name: a process without a GPU never imports its module."""

    __module__ = __name__

    def __init__(self, op: str, module: str) -> None:
        self.__name__ = op
        self._place = module
        self._function: Callable[..., None] | None = None

    def __call__(self, *args: Any, **constants: Any) -> None:
        if self._function is None:
            self._function = getattr(import_module(self._place), self.__name__)
        self._function(*args, **constants)


@dataclass(frozen=True, slots=True)
class Offer:
    """One op that the plugin has a kernel for, with what `register` is told besides."""

    op: str
    module: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def register(
        self, register: Callable[..., None], *, device: str, dtypes: Iterable[torch.dtype]
    ) -> None:
        kernel = LateKernel(self.op, f"luce_kernels_rocm.ops.{self.module}")
        kept = {"device": device, "dtypes": tuple(dtypes), "priority": PRIORITY}
        register(self.op, kernel, **{**kept, **self.options})


def register_kernels(
    register: Callable[..., None],
    *,
    devices: Iterable[str] = GPU_KINDS,
    dtypes: Iterable[torch.dtype] = GPU_DTYPES,
) -> None:
    """Offer every kernel. Tests offer them on `cpu`, where triton's interpreter runs them.

    PluginError without triton."""
    if find_spec("triton") is None:
        raise PluginError(
            "luce-kernels-rocm needs triton: a torch for ROCm or CUDA brings it, else "
            "pip install 'luce-kernels-rocm[triton]'"
        )
    for device in devices:
        for offer in offers():
            offer.register(register, device=device, dtypes=dtypes)


def offers() -> tuple[Offer, ...]:
    """Every offer, in a fixed order."""
    usual = {**CORE_OFFERS, **MODEL_OFFERS}.items()
    chosen = (
        Offer(op, module, {**options, "provider": provider, "priority": CHOSEN_PRIORITY})
        for (op, provider), (module, options) in CHOSEN_OFFERS.items()
    )
    return (*(Offer(op, op, options) for op, options in usual), *chosen)
