"""The nodes of a recording in memory of their own: what graphs capture, and what runs op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.errors import StepFault
from luce_core.ops.record import BatchRef, ConstRef, FieldRef, Recording
from luce_core.ops.spec import Rows
from luce_kernels_rocm.configs import NARROW_ROWS
from luce_kernels_rocm.graphs.fuse import fuse
from luce_kernels_rocm.graphs.graph import Graph, Read, View, build_graph
from luce_kernels_rocm.graphs.launches import launch_of
from luce_kernels_rocm.graphs.places import place


class Launch(NamedTuple):
    """A node: what runs it, what it reads by name, what it fills."""

    run: Callable[..., None]
    reads: Mapping[str, Read]
    outs: tuple[View, ...]


class NodeList:
    """A graph's nodes and its values for at most so many rows of each kind. An output is valid
    until the next call."""

    def __init__(self, graph: Graph, most: Mapping[Rows, int], device: torch.device) -> None:
        self._launches = [Launch(launch_of(node), node.reads, node.outs) for node in graph.nodes]
        self._outputs = graph.outputs
        self._returns_tuple = graph.returns_tuple
        places = place(graph, most)
        self._offsets = places.offsets
        self._memory = torch.empty(places.nbytes, dtype=torch.uint8, device=device)

    def __len__(self) -> int:
        return len(self._launches)

    def run(self, batch: PackedBatch) -> None:
        for launch in self._launches:
            reads = {name: self._resolved(read, batch) for name, read in launch.reads.items()}
            launch.run(*(self._tensor(view, batch) for view in launch.outs), **reads)

    def results(self, batch: PackedBatch) -> Any:
        """What the latest run has made, as the rows of this batch."""
        found = tuple(self._tensor(view, batch) for view in self._outputs)
        return found if self._returns_tuple else found[0]

    def _resolved(self, read: Read, batch: PackedBatch) -> Any:
        match read:
            case View():
                return self._tensor(read, batch)
            case FieldRef(name):
                return getattr(batch, name)
            case BatchRef():
                return batch
            case ConstRef(value):
                return value

    def _tensor(self, view: View, batch: PackedBatch) -> Tensor:
        value = view.value
        rows = {
            Rows.TOKENS: batch.rows,
            Rows.LOGITS: batch.logits,
            Rows.SEGMENTS: batch.segments,
        }[value.rows]
        start = self._offsets[value] // value.dtype.itemsize + view.offset
        memory = self._memory.view(value.dtype)
        return memory.as_strided((rows, *view.tail), view.strides, start)


class Steps:
    """A recording, fused in one way for few rows and in another for more."""

    def __init__(self, recording: Recording, *, max_segments: int, device: torch.device) -> None:
        self._most = {
            Rows.TOKENS: recording.max_rows,
            Rows.LOGITS: recording.max_logits,
            Rows.SEGMENTS: max_segments,
        }
        self._calls = len(recording.calls)
        few = {rows: min(most, NARROW_ROWS) for rows, most in self._most.items()}
        self._few = _fused(recording, few, device, few_rows=True)
        self._many = _fused(recording, self._most, device, few_rows=False)

    @property
    def description(self) -> str:
        """For people; empty if nothing is fused."""
        few, many = len(self._few), len(self._many)
        if few == self._calls:
            return ""
        return f"{self._calls} ops in {few} calls, {many} with more than {NARROW_ROWS} rows"

    def __call__(self, batch: PackedBatch) -> Any:
        sizes = (batch.rows, batch.logits, batch.segments)
        most = tuple(self._most.values())
        if any(size > limit for size, limit in zip(sizes, most, strict=True)):
            raise StepFault(
                f"a batch of {sizes} rows, logits and segments does not fit a recording of {most}"
            )
        nodes = self._list(batch)
        nodes.run(batch)
        return nodes.results(batch)

    def results(self, batch: PackedBatch) -> Any:
        """What the latest call has made for a batch of as many rows."""
        return self._list(batch).results(batch)

    def _list(self, batch: PackedBatch) -> NodeList:
        # Segments without rows would need room that there is only where rows are many.
        is_few = max(batch.rows, batch.segments) <= NARROW_ROWS
        return self._few if is_few else self._many


def _fused(
    recording: Recording, most: Mapping[Rows, int], device: torch.device, *, few_rows: bool
) -> NodeList:
    graph = build_graph(recording)
    fuse(graph, few_rows=few_rows)
    return NodeList(graph, most, device)
