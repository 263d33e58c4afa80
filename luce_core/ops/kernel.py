"""What a provider offers for an op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from luce_core.device import Device
from luce_core.errors import ConfigError
from luce_core.weights.quant_types import QuantTensor

REFERENCE = "reference"
ANY_DEVICE = "any"
NO_ISAS: Mapping[str, Callable[[], None]] = MappingProxyType({})


def accept_all(facts: Mapping[str, Any]) -> bool:
    return True


def no_setup(threads: int) -> None:
    """The usual `setup`: nothing."""


def same_arguments(facts: Mapping[str, Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The usual `as_read`: a kernel computes from its arguments as they are."""
    return args


def no_table(path: Path, arch: str) -> None:
    """The usual `read_table`: there is nothing to tune."""


def float32_weight(weight: Any, device: torch.device) -> Any:
    """The usual `prepare`: dequantised once to float32 on the device; None stays None."""
    if isinstance(weight, QuantTensor):
        values = weight.dequantize()
        # Values that lie in the file as they are would be read from its pages in every step.
        is_mapped = values.data_ptr() == weight.blocks.data_ptr()
        weight = values.clone() if is_mapped else values
    return weight.to(device, torch.float32) if isinstance(weight, Tensor) else weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One function that a provider offers for an op, and when it may be used."""

    op: str
    fn: Callable[..., None]
    provider: str
    device: str = ANY_DEVICE
    dtypes: frozenset[torch.dtype] = frozenset()
    arch: frozenset[str] = frozenset()
    priority: int = 0
    accepts: Callable[[Mapping[str, Any]], bool] = accept_all
    prepare: Callable[[Any, torch.device], Any] = float32_weight
    setup: Callable[[int], None] = no_setup
    isas: Mapping[str, Callable[[], None]] = field(default_factory=lambda: NO_ISAS)
    read_table: Callable[[Path, str], None] = no_table
    as_read: Callable[[Mapping[str, Any], tuple[Any, ...]], tuple[Any, ...]] = same_arguments
    row_invariant: bool = False
    split_invariant: bool = False
    recordable: bool = True

    def fits(self, device: Device, arch: str, dtype: torch.dtype) -> bool:
        """Whether it runs on this device at this activation dtype, whatever the facts."""
        return (
            self.device in (ANY_DEVICE, device.kind)
            and (not self.dtypes or dtype in self.dtypes)
            and (not self.arch or arch in self.arch)
        )

    @property
    def described(self) -> str:
        """Provider, device, dtypes and architectures, for people."""
        dtypes = sorted(str(dtype) for dtype in self.dtypes)
        return f"{self.provider} ({' '.join([self.device, *dtypes, *sorted(self.arch)])})"

    def choose_isa(self, isa: str | None) -> None:
        """Use this instruction set from now on, if the provider has it; None leaves the choice."""
        if isa is not None and isa in self.isas:
            self.isas[isa]()

    def isa_in_use(self, isa: str | None) -> str:
        """The instruction set after `choose_isa(isa)`; empty if there is no choice."""
        return isa if isa is not None and isa in self.isas else next(iter(self.isas), "")


def check_isa(isa: str, kernels: Iterable[Kernel]) -> None:
    """ConfigError that says what there is, unless one of the kernels has the instruction set."""
    offers = {kernel.provider: kernel.isas for kernel in kernels if kernel.isas}
    if any(isa in isas for isas in offers.values()):
        return
    there = "; ".join(f"{', '.join(isas)} ({provider})" for provider, isas in offers.items())
    raise ConfigError(
        f"--kernel-isa {isa}: "
        + (f"this machine has {there}" if there else "no kernel in use here has such a choice")
    )
