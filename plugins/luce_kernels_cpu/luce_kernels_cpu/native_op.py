"""An op as one record of the library: what says all of it, for eager calls and for the tape.

A family of ops has a module of its own with a C struct, how it is filled and a NativeOp for each;
`native_ops.py` lists them. The shared passes know such ops by what a NativeOp says, never by name.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.program import Work
from luce_kernels_cpu import structs
from luce_kernels_cpu.batch_view import fill_batch
from luce_kernels_cpu.provider import provider
from luce_kernels_cpu.structs import Domain, Op
from luce_kernels_cpu.views import (
    ALIGN,
    NO_QUANTIZED,
    quantized_at,
    quantized_bytes,
    representable,
    tensor_rows,
)

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Arg(Enum):
    """What an argument of the op is to the library."""

    TOKENS = auto()  # rows, one for each token
    LOGITS = auto()  # rows, one for each logit row
    ANY = auto()  # rows of either kind
    BATCH = auto()
    READ = auto()  # a cache that is read
    WRITTEN = auto()  # a cache that is overwritten: doing it again changes nothing
    MOVED = auto()  # a cache [slots + 1, ...] that moves on from what it holds
    WEIGHT = auto()


ROWS = (Arg.TOKENS, Arg.LOGITS, Arg.ANY)
CACHES = (Arg.READ, Arg.WRITTEN, Arg.MOVED)
_DOMAINS = MappingProxyType({Arg.TOKENS: Domain.TOKENS, Arg.LOGITS: Domain.LOGITS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a record is filled from.

    Rows by argument (`out` among them), caches and prepared weights by argument, the op's
    constants; the int8 form of the output if it is wanted, and that of the rows `x` if the op's
    weight multiplies them so; the address of memory that all workers share, made for `logits` rows.
    """

    rows: Mapping[str, structs.Rows]
    tensors: Mapping[str, Any]
    facts: Mapping[str, Any]
    quantized: structs.Quantized = NO_QUANTIZED
    quantized_in: structs.Quantized = NO_QUANTIZED
    shared: int = 0
    logits: int = 0


def no_shared_bytes(facts: Mapping[str, Any], rows: int) -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOp:
    """One op. `args` are its arguments in the op's order, `out` last if it has one.

    `int8_group(facts)` is how many values of an output row are finished at a time, where the kernel
    can write their int8 form as well or alone. `shared_bytes(facts, rows)` is how much memory
    workers share for so many logit rows. `int8_weight` names the packed weight that may want `x` as
    int8. `work(constants, rows)` is for the profiler. `offer` goes to `register`.
    """

    name: str
    code: Op
    args: Mapping[str, Arg]
    fill: Callable[[Given], c.Structure]
    int8_group: Callable[[Mapping[str, Any], int], int] | None = None
    shared_bytes: Callable[[Mapping[str, Any], int], int] = no_shared_bytes
    int8_weight: str | None = None
    work: Callable[[Mapping[str, Any], int], Work] | None = None
    offer: Mapping[str, Any] = field(default_factory=lambda: NOTHING)

    @property
    def has_out(self) -> bool:
        return "out" in self.args

    def int8_block(self, constants: Mapping[str, Any]) -> int:
        """Values that share a scale in the int8 form of `x` that a call with these weights reads;
        0 if it reads floats."""
        return 0 if self.int8_weight is None else int(constants[self.int8_weight].int8_block)

    def names(self, *kinds: Arg) -> tuple[str, ...]:
        """The arguments of these kinds, in order."""
        return tuple(name for name, kind in self.args.items() if kind in kinds)

    def __call__(self, *args: Any, **facts: Any) -> None:
        """Run it alone, as the registry calls kernels."""
        given = dict(zip(self.args, args, strict=True))
        # Copies must live until the call is over.
        rows = {name: representable(given[name]) for name in self.read_rows}
        if self.has_out:
            rows["out"] = given["out"]
        batch = structs.Batch(rows=len(next(iter(rows.values()), ())))
        for name in self.names(Arg.BATCH):
            fill_batch(batch, given[name])
        logits = _logit_count(self, given)
        shared = torch.empty(self.shared_bytes(facts, logits) + ALIGN, dtype=torch.uint8)
        quantized_in = NO_QUANTIZED
        block = self.int8_block(given)
        if block:
            made = QuantizedRows(rows["x"], block)
            quantized_in = made.record
        record = self.fill(
            Given(
                rows={
                    name: tensor_rows(x, _DOMAINS.get(self.args[name], Domain.FIXED))
                    for name, x in rows.items()
                },
                tensors={name: given[name] for name in self.names(*CACHES, Arg.WEIGHT)},
                facts=facts,
                quantized_in=quantized_in,
                shared=-(-shared.data_ptr() // ALIGN) * ALIGN,
                logits=logits,
            )
        )
        provider().run(self.code, record, batch)

    @property
    def read_rows(self) -> tuple[str, ...]:
        """The arguments that are rows of other ops."""
        return tuple(name for name in self.names(*ROWS) if name != "out")


class QuantizedRows:
    """The int8 form of rows x [R, ...], of which `block` values share a scale; it lives as long as
    this object."""

    def __init__(self, x: Tensor, block: int) -> None:
        rows, k = len(x), prod(x.shape[1:])
        self._memory = torch.empty(quantized_bytes(rows, k) + ALIGN, dtype=torch.uint8)
        self.record = quantized_at(-(-self._memory.data_ptr() // ALIGN) * ALIGN, rows, k, block)
        args = structs.QuantizeArgs(tensor_rows(x), self.record)
        provider().run(Op.QUANTIZE, args, structs.Batch(rows=rows))


def _logit_count(op: NativeOp, given: Mapping[str, Any]) -> int:
    batches = [given[name] for name in op.names(Arg.BATCH)]
    return max((batch.logits for batch in batches if isinstance(batch, PackedBatch)), default=0)


def cache_address(cache: Tensor, dtype: torch.dtype = torch.float32) -> int:
    """Where a cache begins, which the library reads as `dtype` in one piece."""
    assert cache.dtype is dtype, cache.dtype
    assert cache.is_contiguous(), cache.stride()
    return cache.data_ptr()
