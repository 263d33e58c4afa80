"""Fused records as the C structs that a tape copies."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Mapping
from types import MappingProxyType

from luce_kernels_cpu.emit_heads import rope_write_args
from luce_kernels_cpu.fused_structs import (
    GateUpArgs,
    HeadTokenArgs,
    ProjectHeadsArgs,
    Projection,
    TurnsArgs,
)
from luce_kernels_cpu.graph import Record
from luce_kernels_cpu.memory import Memory
from luce_kernels_cpu.provider import address
from luce_kernels_cpu.structs import Op
from luce_kernels_cpu.views import NO_QUANTIZED, NO_ROWS


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


def _turns(record: Record, memory: Memory) -> c.Structure:
    rope = record.constants
    return TurnsArgs(
        address(rope["inv_freq"]),
        rope["rotary_dim"] // 2,
        rope["interleaved"],
        rope["attention_factor"],
        memory.rows(record.out),
    )


def _project_heads(record: Record, memory: Memory) -> c.Structure:
    out = memory.rows(record.out)
    return ProjectHeadsArgs(
        memory.rows(record.views["x"]),
        *(_projection(record, memory, side) for side in ("q", "k", "v")),
        rope_write_args(
            record.constants["heads"],
            record.caches,
            q=out,
            k=memory.rows(record.also["k"]),
            v=memory.rows(record.also["v"]),
            out=out,
        ),
        memory.rows(record.views["turns"]),
        memory.counters[record],
    )


def _head_token(record: Record, memory: Memory) -> c.Structure:
    logits = record.also.get("logits")
    counters = memory.counters[record]
    return HeadTokenArgs(
        memory.rows(record.views["x"]),
        _projection(record, memory, "head"),
        NO_ROWS if logits is None else memory.rows(logits),
        memory.rows(record.out).data,
        counters,
        counters + 8 * record.out.value.max_rows,
    )


FUSED: Mapping[Op, Callable[[Record, Memory], c.Structure]] = MappingProxyType(
    {
        Op.GATE_UP: _gate_up,
        Op.TURNS: _turns,
        Op.PROJECT_HEADS: _project_heads,
        Op.HEAD_TOKEN: _head_token,
    }
)
