"""A recording as nodes, before fusing and before memory is given out.

A recording reuses arena places; here every output is a value of its own, so that passes need only
look at who reads what. Memory is shared again in `places.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod

import torch

from luce_core.ops.bound import BoundOp
from luce_core.ops.record import BatchRef, BufferRef, Call, ConstRef, FieldRef, Recording, Ref
from luce_core.ops.spec import Rows


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """Memory that one node fills: rows of `width` elements."""

    rows: Rows
    dtype: torch.dtype
    width: int


@dataclass(frozen=True, slots=True)
class View:
    """Part of each row of a value; strides and offset are counted in elements."""

    value: Value
    tail: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def is_whole(self) -> bool:
        return self.offset == 0 and prod(self.tail) == self.value.width


Read = View | FieldRef | BatchRef | ConstRef


class Kind(Enum):
    """What a node does."""

    CALL = "call"  # `op` as it was recorded
    PRODUCT = "product"  # `product`, of rows that go through `norm`, and `residual` behind it
    GATE_UP = "gate_up"  # `gate` and `up` of the same rows, `swiglu` behind them
    ADD_NORM = "add_norm"  # a sum, and `norm` of it


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One launch, or one op's: `ops` by their part in it, what it reads by name, what it fills."""

    kind: Kind
    ops: Mapping[str, BoundOp]
    reads: Mapping[str, Read]
    outs: tuple[View, ...]

    @property
    def views(self) -> Iterator[View]:
        """What it reads of other nodes."""
        return (read for read in self.reads.values() if isinstance(read, View))

    def view(self, name: str) -> View:
        found = self.reads[name]
        assert isinstance(found, View), (self.kind, name)
        return found


@dataclass(slots=True)
class Graph:
    """The nodes of a step in order, and what the step returns."""

    nodes: list[Node]
    outputs: tuple[View, ...]
    returns_tuple: bool

    def uses(self) -> Counter[Value]:
        """How many views of each value are read, the step's results included."""
        uses = Counter(view.value for node in self.nodes for view in node.views)
        uses.update(view.value for view in self.outputs)
        return uses


def build_graph(recording: Recording) -> Graph:
    """The same calls in the same order."""
    places: dict[int, Value] = {}

    def read(ref: Ref) -> Read:
        return _view(places, ref) if isinstance(ref, BufferRef) else ref

    def node(call: Call) -> Node:
        names = [arg.name for arg in call.op.spec.step_args]
        reads = dict(zip(names, map(read, call.args), strict=True))
        outs: tuple[View, ...] = ()
        if call.out is not None:
            out = call.out
            places[out.place] = Value(out.rows, out.dtype, out.strides[0])
            outs = (_view(places, out),)
        return Node(Kind.CALL, {"op": call.op}, reads, outs)

    nodes = [node(call) for call in recording.calls]
    outputs = tuple(_view(places, ref) for ref in recording.outputs)
    return Graph(nodes, outputs, recording.returns_tuple)


def _view(places: Mapping[int, Value], ref: BufferRef) -> View:
    value = places[ref.place]
    assert (value.rows, value.dtype) == (ref.rows, ref.dtype), (value, ref)
    return View(value, ref.tail, ref.strides, ref.offset)
