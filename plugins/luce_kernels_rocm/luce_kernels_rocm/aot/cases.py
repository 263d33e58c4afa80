"""Op calls at the shapes of real models, for compiling ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from luce_core.device import Device
from luce_core.ops.core_ops import core_registry
from luce_core.ops.registry import OpRegistry
from luce_core.weights.quant_types import QUANT_TYPES, QuantTensor
from luce_kernels_rocm.offers import GPU_DTYPES, register_kernels

CPU = Device("cpu")
WIDTH = 5120
HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class AotCase:
    """One op call. Critical ones, those of every decode step, are compiled in every test run."""

    name: str
    run: Callable[[], Any]
    critical: bool


def registry() -> OpRegistry:
    """Core ops with this plugin's kernels on CPU tensors."""
    made = core_registry()
    register_kernels(made.register_kernel, devices=("cpu",), dtypes=GPU_DTYPES)
    return made


def cases(dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)) -> Iterator[AotCase]:
    """Every case, each at its first dtype critical at most."""
    made = registry()
    for place, dtype in enumerate(dtypes):
        short = str(dtype).removeprefix("torch.")

        def case(
            op: str,
            variant: str,
            facts: Mapping[str, Any],
            args: tuple[Any, ...],
            weights: tuple[Any, ...] = (),
            *,
            critical: bool = False,
            dtype: torch.dtype = dtype,
            name: str = short,
            first: bool = place == 0,
        ) -> AotCase:
            binder = made.binder(CPU, dtype)

            def run() -> None:
                binder.bind(op, weights=weights, **facts)(*args)

            return AotCase(f"{op} {variant} {name}".replace("  ", " "), run, critical and first)

        yield from _rows(case, dtype)


Make = Callable[..., AotCase]


def _rows(case: Make, dtype: torch.dtype) -> Iterator[AotCase]:
    def rows(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=dtype)

    weight = torch.empty(WIDTH)
    yield case("rms_norm", "", {"eps": 1e-6}, (rows(4, WIDTH),), (weight,), critical=True)
    heads = torch.empty(HEAD_DIM)
    yield case("rms_norm", "heads", {"eps": 1e-6}, (rows(4, 24, HEAD_DIM),), (heads,))


def blank_weight(n: int, k: int, qtype: str) -> QuantTensor:
    """A weight whose bytes nobody reads."""
    kind = QUANT_TYPES[qtype]
    blocks = torch.empty(n, kind.row_bytes(k), dtype=torch.uint8)
    return QuantTensor("weight", kind, (n, k), blocks)
