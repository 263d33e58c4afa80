"""Records as the C structs that a tape copies."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Mapping
from types import MappingProxyType

from luce_kernels_cpu import structs
from luce_kernels_cpu.emit_fused import FUSED
from luce_kernels_cpu.emit_heads import rope_args, rope_write_args
from luce_kernels_cpu.graph import Record
from luce_kernels_cpu.memory import Memory
from luce_kernels_cpu.native_op import CACHES, Arg, Given
from luce_kernels_cpu.provider import address
from luce_kernels_cpu.structs import Op
from luce_kernels_cpu.views import NO_ROWS, cache_view


def emit(record: Record, memory: Memory) -> c.Structure:
    """The argument record of its op."""
    if record.native is not None:
        return _native(record, memory)
    return _EMITTERS[record.op](record, memory)


def _native(record: Record, memory: Memory) -> c.Structure:
    native = record.native
    assert native is not None
    views = {**record.views, "out": record.out} if native.has_out else record.views
    weights = {name: record.constants[name] for name in native.names(Arg.WEIGHT)}
    caches = dict(zip(native.names(*CACHES), record.caches, strict=True))
    given = Given(
        rows={name: memory.rows(view) for name, view in views.items()},
        tensors={**caches, **weights},
        facts=record.constants,
        quantized=memory.quantized(record.quantized_out),
        quantized_in=memory.quantized(record.quantized_in),
        shared=memory.partials,
        logits=memory.logits,
    )
    return native.fill(given)


def _quantize(record: Record, memory: Memory) -> c.Structure:
    return structs.QuantizeArgs(
        memory.rows(record.views["x"]), memory.quantized(record.quantized_out)
    )


def _matmul(record: Record, memory: Memory) -> c.Structure:
    residual = record.views.get("residual")
    return structs.MatmulArgs(
        record.constants["weight"].handle,
        memory.rows(record.views["x"]),
        memory.quantized(record.quantized_in),
        address(record.constants["bias"]),
        NO_ROWS if residual is None else memory.rows(residual),
        memory.rows(record.out),
    )


def _norm(record: Record, memory: Memory) -> c.Structure:
    return structs.NormArgs(
        memory.rows(record.views["x"]),
        address(record.constants["weight"]),
        record.constants["eps"],
        record.constants["group"],
        memory.rows(record.out),
        memory.quantized(record.quantized_out),
    )


def _rope(record: Record, memory: Memory) -> c.Structure:
    return rope_args(record.constants, memory.rows(record.views["x"]), memory.rows(record.out))


def _rope_write(record: Record, memory: Memory) -> c.Structure:
    return rope_write_args(
        record.constants,
        record.caches,
        q=memory.rows(record.views["q"]),
        k=memory.rows(record.views["k"]),
        v=memory.rows(record.views["v"]),
        out=memory.rows(record.out),
    )


def _kv_write(record: Record, memory: Memory) -> c.Structure:
    facts = record.constants
    k_cache, v_cache = record.caches
    return structs.KvWriteArgs(
        memory.rows(record.views["k"]),
        memory.rows(record.views["v"]),
        cache_view(k_cache, facts["k_type"], facts),
        cache_view(v_cache, facts["v_type"], facts),
    )


def _attention(record: Record, memory: Memory) -> c.Structure:
    facts = record.constants
    k_cache, v_cache = record.caches
    return structs.AttentionArgs(
        memory.rows(record.views["q"]),
        cache_view(k_cache, facts["k_type"], facts),
        cache_view(v_cache, facts["v_type"], facts),
        facts["heads"],
        facts["scale"],
        memory.rows(record.out),
        memory.partials,
        memory.partials_bytes,
        memory.quantized(record.quantized_out),
    )


def _swiglu(record: Record, memory: Memory) -> c.Structure:
    return structs.SwigluArgs(
        memory.rows(record.views["gate"]),
        memory.rows(record.views["up"]),
        memory.rows(record.out),
        record.constants["limit"] or 0.0,
        memory.quantized(record.quantized_out),
    )


def _add(record: Record, memory: Memory) -> c.Structure:
    a, b = record.views["a"], record.views["b"]
    return structs.AddArgs(memory.rows(a), memory.rows(b), memory.rows(record.out))


def _embedding(record: Record, memory: Memory) -> c.Structure:
    return structs.EmbeddingArgs(record.constants["table"].handle, memory.rows(record.out))


def _gather(record: Record, memory: Memory) -> c.Structure:
    return structs.GatherArgs(memory.rows(record.views["x"]), memory.rows(record.out))


def _greedy_token(record: Record, memory: Memory) -> c.Structure:
    return structs.GreedyTokenArgs(memory.rows(record.views["x"]), memory.rows(record.out).data)


_EMITTERS: Mapping[Op, Callable[[Record, Memory], c.Structure]] = MappingProxyType(
    {
        Op.QUANTIZE: _quantize,
        Op.MATMUL: _matmul,
        Op.NORM: _norm,
        Op.ROPE: _rope,
        Op.KV_WRITE: _kv_write,
        Op.ATTENTION: _attention,
        Op.SWIGLU: _swiglu,
        Op.ADD: _add,
        Op.EMBEDDING: _embedding,
        Op.GATHER: _gather,
        Op.GREEDY_TOKEN: _greedy_token,
        Op.ROPE_WRITE: _rope_write,
        **FUSED,
    }
)
