"""Where the values of a step lie in one piece of memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from luce_core.ops.spec import Rows
from luce_kernels_rocm.graphs.graph import Graph, Value

# What loads of whole memory transactions want.
ALIGNMENT = 256


class Places(NamedTuple):
    """Byte offsets, and the size of it all."""

    offsets: Mapping[Value, int]
    nbytes: int


def place(graph: Graph, most: Mapping[Rows, int]) -> Places:
    """The lowest free offset for each value, in the order in which they are made, for so many rows
    of each kind. Values share memory only if one is read for the last time by an earlier node than
    the other's first: a node never writes what it reads."""
    last: dict[Value, int] = {}
    for number, node in enumerate(graph.nodes):
        for view in (*node.outs, *node.views):
            last[view.value] = number
    for view in graph.outputs:
        last[view.value] = len(graph.nodes)
    offsets: dict[Value, int] = {}
    ends: dict[Value, int] = {}
    alive: list[Value] = []
    for number, node in enumerate(graph.nodes):
        for view in node.outs:
            value = view.value
            alive = [other for other in alive if last[other] >= number]
            size = most[value.rows] * value.width * value.dtype.itemsize
            offset = 0
            for other in sorted(alive, key=offsets.__getitem__):
                if offset + size <= offsets[other]:
                    break
                offset = max(offset, ends[other])
            offsets[value] = offset
            ends[value] = _aligned(offset + size)
            alive.append(value)
    return Places(offsets, max(ends.values(), default=0))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
