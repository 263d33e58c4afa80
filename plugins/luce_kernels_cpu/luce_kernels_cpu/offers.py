"""What the plugin registers: one kernel per op, for float32 activations on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from luce_kernels_cpu import eager
from luce_kernels_cpu.library import KernelsUnavailable
from luce_kernels_cpu.native_ops import NATIVE_OPS
from luce_kernels_cpu.native_weight import pack_weight
from luce_kernels_cpu.provider import provider
from luce_kernels_cpu.weight_types import accepts_weight, as_matmul_reads

PRIORITY = 100
_OFFERS: tuple[tuple[Callable[..., None], Mapping[str, Any]], ...] = (
    (
        eager.quant_matmul,
        {"prepare": pack_weight, "accepts": accepts_weight, "as_read": as_matmul_reads},
    ),
    (eager.embedding_rows, {"prepare": pack_weight, "accepts": accepts_weight}),
    (eager.rms_norm, {}),
    (eager.rope, {}),
    (eager.kv_write, {}),
    (eager.paged_attention, {}),
    (eager.swiglu, {"accepts": eager.accepts_limit}),
    (eager.add, {}),
    (eager.gather_rows, {}),
    (eager.greedy_token, {}),
)


def register_kernels(register: Callable[..., None]) -> None:
    """Load the library and offer its kernels. Raises KernelsUnavailable."""
    own = provider()
    if not own.isas:
        raise KernelsUnavailable("the native kernels need a processor with AVX2, FMA and F16C")
    isas = {isa: partial(own.set_isa, isa) for isa in own.isas}
    functions = [(function.__name__, function, options) for function, options in _OFFERS]
    natives = [(op.name, op, op.offer) for op in NATIVE_OPS]
    for name, kernel, options in (*functions, *natives):
        common = {
            "device": "cpu",
            "dtypes": (torch.float32,),
            "priority": PRIORITY,
            "setup": own.set_threads,
            "isas": isas,
            "row_invariant": True,
            "split_invariant": True,
        }
        register(name, kernel, **{**common, **options})
