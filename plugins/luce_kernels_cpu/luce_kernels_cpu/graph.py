"""A recording as records of the native library, before fusing and before memory is given out.

A recording reuses arena places; here every output is a value of its own, so that passes need only
look at who reads what. Memory is shared again in schedule.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from luce_core.ops.host_op import HOST
from luce_core.ops.record import BufferRef, Call, ConstRef, FieldRef, Recording, Ref
from luce_core.ops.spec import Rows
from luce_core.ops.symbols import RecordingRefused
from luce_kernels_cpu import eager
from luce_kernels_cpu.native_op import CACHES, Arg, NativeOp
from luce_kernels_cpu.native_weight import NativeWeight
from luce_kernels_cpu.structs import Domain, Op
from luce_kernels_cpu.views import contiguous_inside, quantized_bytes

DOMAINS: Mapping[Rows, Domain] = MappingProxyType(
    {Rows.TOKENS: Domain.TOKENS, Rows.LOGITS: Domain.LOGITS}
)


@dataclass(slots=True, eq=False)
class Value:
    """Memory that one record fills: float or int32 rows `stride` elements apart."""

    domain: Domain
    max_rows: int
    stride: int

    @property
    def nbytes(self) -> int:
        return self.max_rows * self.stride * 4


@dataclass(slots=True, eq=False)
class QuantizedValue:
    """The int8 form of rows of k values, of which `block` share a scale."""

    max_rows: int
    k: int
    block: int

    @property
    def nbytes(self) -> int:
        return quantized_bytes(self.max_rows, self.k)


@dataclass(frozen=True, slots=True)
class View:
    """Part of each row of a value: `width` elements from `offset` on."""

    value: Value
    offset: int
    width: int

    @property
    def is_whole(self) -> bool:
        return self.offset == 0 and self.width == self.value.stride


@dataclass(slots=True, eq=False)
class Record:
    """One record of the tape. `views` are read, by the name of the C field; `constants` hold what
    the op needs besides (weights are kept alive by them). `floats` is False where the int8 form of
    the output is all that is made of it. `also` are further rows that it writes, if only to work
    there. `counter_bytes` of memory of its own, 0 between steps, are what its workers count in.
    `native` describes ops that have no code of their own here; their constants hold facts and
    weights by name. `host` is what the host does itself, between two tapes."""

    op: Op
    out: View
    views: dict[str, View] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    caches: tuple[Tensor, ...] = ()
    quantized_in: QuantizedValue | None = None
    quantized_out: QuantizedValue | None = None
    floats: bool = True
    also: dict[str, View] = field(default_factory=dict)
    counter_bytes: int = 0
    native: NativeOp | None = None
    host: Call | None = None

    @property
    def name(self) -> str:
        """For people."""
        return self.op.name.lower() if self.host is None else self.host.op.spec.name

    @property
    def written_caches(self) -> tuple[Tensor, ...]:
        if self.native is not None:
            return self.caches_of(Arg.WRITTEN, Arg.MOVED)
        writers = (Op.KV_WRITE, Op.ROPE_WRITE, Op.PROJECT_HEADS)
        return self.caches if self.op in writers else ()

    @property
    def moved_caches(self) -> tuple[Tensor, ...]:
        """By slot: what a second run would move on once more."""
        return () if self.native is None else self.caches_of(Arg.MOVED)

    def caches_of(self, *kinds: Arg) -> tuple[Tensor, ...]:
        """The caches of a native op that are arguments of these kinds."""
        assert self.native is not None
        names = self.native.names(*CACHES)
        wanted = self.native.names(*kinds)
        return tuple(
            cache for name, cache in zip(names, self.caches, strict=True) if name in wanted
        )

    @property
    def has_out(self) -> bool:
        if self.native is not None:
            return self.native.has_out
        return self.op not in (Op.KV_WRITE, Op.QUANTIZE)

    @property
    def weights(self) -> tuple[NativeWeight, ...]:
        """The matrices that it reads all of."""
        found = self.constants.values()
        return tuple(each for each in found if isinstance(each, NativeWeight))

    @property
    def reads(self) -> tuple[Value | QuantizedValue, ...]:
        """What must be complete before this record."""
        if self.quantized_in is None:
            return tuple(view.value for view in self.views.values())
        floats = self.native is None and not all(each.takes_int8 for each in self.weights)
        rest = (view.value for name, view in self.views.items() if floats or name != "x")
        return (self.quantized_in, *rest)

    @property
    def writes(self) -> tuple[Value | QuantizedValue, ...]:
        values: list[Value | QuantizedValue] = []
        if self.has_out and self.floats:
            values.append(self.out.value)
        values += [view.value for view in self.also.values()]
        if self.quantized_out is not None:
            values.append(self.quantized_out)
        return tuple(values)


@dataclass(slots=True)
class Graph:
    """The records of a step in order, and what the step returns."""

    records: list[Record]
    outputs: tuple[View, ...]
    output_tails: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[torch.dtype, ...]
    returns_tuple: bool

    def reader_counts(self) -> Counter[Value]:
        """How many views of each value records read."""
        return Counter(view.value for record in self.records for view in record.views.values())

    def uses(self) -> Counter[Value]:
        """How many views of each value are read, the step's results included."""
        uses = self.reader_counts()
        uses.update(view.value for view in self.outputs)
        return uses

    def product_finder(self) -> Callable[[View], Record | None]:
        """Finds the product of rows and one weight that a view is all of, and whose only reader
        it is; as the records are now."""
        uses = self.uses()
        products = {r.out.value: r for r in self.records if r.op is Op.MATMUL}

        def product(view: View) -> Record | None:
            found = products.get(view.value)
            alone = view.is_whole and uses[view.value] == 1
            return found if alone and found is not None and "residual" not in found.views else None

        return product


def read_one_form(records: Sequence[Record]) -> bool:
    """Whether those of the records' weights that multiply int8 rows multiply the same."""
    weights = [weight for record in records for weight in record.weights]
    return len({weight.int8_block for weight in weights} - {0}) < 2


class _Builder:
    def __init__(self, recording: Recording) -> None:
        self._most = {Domain.TOKENS: recording.max_rows, Domain.LOGITS: recording.max_logits}
        self._places: dict[int, Value] = {}

    def record(self, call: Call) -> Record:
        name = call.op.spec.name
        kernel = call.op.kernel
        if kernel.provider == HOST:
            return self.host_record(call)
        is_native = isinstance(kernel.fn, NativeOp)
        make = _native if is_native else _MAKERS.get(name)
        if make is None or not (is_native or getattr(eager, name, None) is kernel.fn):
            raise RecordingRefused(name, f"it is bound to {kernel.provider}")
        reads = [self.read(name, ref) for ref in call.args]
        record = make(call, reads)
        if call.out is not None:
            record.out = self.write(name, call.out)
        return record

    def host_record(self, call: Call) -> Record:
        """Of rows alone: fields of the batch are not handed on."""
        name = call.op.spec.name
        assert call.out is not None, name
        args = zip(call.op.spec.args, call.args, strict=True)
        views: dict[str, View] = {}
        for arg, ref in args:
            view = self.read(name, ref)
            if not isinstance(view, View):
                raise RecordingRefused(name, f"the host reads rows only, not {arg.name}")
            views[arg.name] = view
        return Record(Op.HOST, self.write(name, call.out), views, host=call)

    def read(self, op: str, ref: Ref) -> View | str | Tensor | None:
        """A view of an activation, the name of a field, a cache, or None for the batch."""
        match ref:
            case BufferRef():
                if ref.dtype is not torch.float32:
                    raise RecordingRefused(op, f"the native kernels read float32, not {ref.dtype}")
                return self.view(op, ref)
            case FieldRef(name):
                return name
            case ConstRef(Tensor() as cache):
                return cache
            case _:
                return None

    def view(self, op: str, ref: BufferRef) -> View:
        value = self._places.get(ref.place)
        assert value is not None, f"{op} reads arena place {ref.place} before it is written"
        if not contiguous_inside((1, *ref.tail), ref.strides):
            raise RecordingRefused(op, f"it reads rows {ref.tail} with strides {ref.strides}")
        assert ref.strides[0] == value.stride, (op, ref)
        return View(value, ref.offset, prod(ref.tail))

    def write(self, op: str, ref: BufferRef) -> View:
        domain = DOMAINS.get(ref.rows)
        if domain is None or ref.dtype not in (torch.float32, torch.int32):
            raise RecordingRefused(op, f"it writes {ref.dtype} rows of {ref.rows}")
        value = Value(domain, self._most[domain], ref.strides[0])
        self._places[ref.place] = value
        return View(value, 0, value.stride)


def build_graph(recording: Recording) -> Graph:
    """RecordingRefused names the op that the native library cannot do."""
    builder = _Builder(recording)
    records = [builder.record(call) for call in recording.calls]
    return Graph(
        records,
        tuple(builder.view("the result", ref) for ref in recording.outputs),
        tuple(ref.tail for ref in recording.outputs),
        tuple(ref.dtype for ref in recording.outputs),
        recording.returns_tuple,
    )


_NOWHERE = View(Value(Domain.FIXED, 0, 0), 0, 0)


def _native(call: Call, reads: list[Any]) -> Record:
    native = call.op.kernel.fn
    assert isinstance(native, NativeOp)
    given = dict(zip(native.args, reads, strict=False))  # weights and the output come after
    weights = dict(zip(native.names(Arg.WEIGHT), call.op.weights, strict=True))
    return Record(
        native.code,
        _NOWHERE,
        {name: given[name] for name in native.read_rows},
        {**call.op.constants, **weights},
        caches=tuple(given[name] for name in native.names(*CACHES)),
        native=native,
    )


def _expect_field(call: Call, found: Any, name: str) -> None:
    """The library reads a field of the batch by name, so the call must pass that one."""
    if found != name:
        raise RecordingRefused(call.op.spec.name, f"it must read the batch's {name}")


def _quant_matmul(call: Call, reads: list[Any]) -> Record:
    weight, bias = call.op.weights
    return Record(Op.MATMUL, _NOWHERE, {"x": reads[0]}, {"weight": weight, "bias": bias})


def _embedding_rows(call: Call, reads: list[Any]) -> Record:
    _expect_field(call, reads[0], "token_ids")
    return Record(Op.EMBEDDING, _NOWHERE, {}, {"table": call.op.weights[0]})


def _rms_norm(call: Call, reads: list[Any]) -> Record:
    weight = call.op.weights[0]
    constants = {"weight": weight, "eps": call.op.constants["eps"], "group": weight.shape[0]}
    return Record(Op.NORM, _NOWHERE, {"x": reads[0]}, constants)


def _rope(call: Call, reads: list[Any]) -> Record:
    _expect_field(call, reads[1], "positions")
    ref = call.args[0]
    assert isinstance(ref, BufferRef)
    heads, dim = ref.tail
    constants = {**call.op.constants, "heads": heads, "dim": dim}
    return Record(Op.ROPE, _NOWHERE, {"x": reads[0]}, constants)


def _kv_write(call: Call, reads: list[Any]) -> Record:
    k, v, kv_rows, k_cache, v_cache = reads
    _expect_field(call, kv_rows, "kv_rows")
    return Record(
        Op.KV_WRITE, _NOWHERE, {"k": k, "v": v}, call.op.constants, caches=(k_cache, v_cache)
    )


def _paged_attention(call: Call, reads: list[Any]) -> Record:
    q, _, k_cache, v_cache = reads
    return Record(Op.ATTENTION, _NOWHERE, {"q": q}, call.op.constants, caches=(k_cache, v_cache))


def _swiglu(call: Call, reads: list[Any]) -> Record:
    return Record(Op.SWIGLU, _NOWHERE, {"gate": reads[0], "up": reads[1]}, call.op.constants)


def _add(call: Call, reads: list[Any]) -> Record:
    return Record(Op.ADD, _NOWHERE, {"a": reads[0], "b": reads[1]})


def _gather_rows(call: Call, reads: list[Any]) -> Record:
    _expect_field(call, reads[1], "logit_rows")
    return Record(Op.GATHER, _NOWHERE, {"x": reads[0]})


def _greedy_token(call: Call, reads: list[Any]) -> Record:
    return Record(Op.GREEDY_TOKEN, _NOWHERE, {"x": reads[0]})


_MAKERS = MappingProxyType(
    {
        "quant_matmul": _quant_matmul,
        "embedding_rows": _embedding_rows,
        "rms_norm": _rms_norm,
        "rope": _rope,
        "kv_write": _kv_write,
        "paged_attention": _paged_attention,
        "swiglu": _swiglu,
        "add": _add,
        "gather_rows": _gather_rows,
        "greedy_token": _greedy_token,
    }
)
