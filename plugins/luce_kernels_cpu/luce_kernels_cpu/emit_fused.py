"""Fused records as the C structs that a tape copies."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Mapping
from types import MappingProxyType

from luce_kernels_cpu.fused_structs import GateUpArgs, Projection
from luce_kernels_cpu.graph import Record
from luce_kernels_cpu.memory import Memory
from luce_kernels_cpu.provider import address
from luce_kernels_cpu.structs import Op
from luce_kernels_cpu.views import NO_QUANTIZED


def _projection(record: Record, memory: Memory, name: str) -> Projection:
    """A weight with the form of the record's rows `x` that it multiplies."""
    weight = record.constants[name]
    form = memory.quantized(record.quantized_in) if weight.takes_int8 else NO_QUANTIZED
    return Projection(weight.handle, form, address(record.constants[f"{name}_bias"]))


def _gate_up(record: Record, memory: Memory) -> c.Structure:
    return GateUpArgs(
        memory.rows(record.views["x"]),
        _projection(record, memory, "gate"),
        _projection(record, memory, "up"),
        record.constants["limit"] or 0.0,
        memory.rows(record.out),
        memory.quantized(record.quantized_out),
    )


FUSED: Mapping[Op, Callable[[Record, Memory], c.Structure]] = MappingProxyType(
    {Op.GATE_UP: _gate_up}
)
