"""When records may run at once, and where their values lie."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from luce_kernels_cpu.graph import Graph, QuantizedValue, Record, Value
from luce_kernels_cpu.views import aligned

Stored = Value | QuantizedValue


@dataclass(frozen=True, slots=True)
class Schedule:
    """`barriers[i]`: all workers meet after record i. `offsets`: where values begin in an arena of
    `nbytes` bytes."""

    barriers: tuple[bool, ...]
    offsets: dict[Stored, int]
    nbytes: int


def schedule(graph: Graph, *, overlap: bool) -> Schedule:
    """Records between two barriers run at once, so none of them may need another's result."""
    groups = _groups(graph.records, overlap=overlap)
    barriers = tuple(group != following for group, following in pairwise(groups))
    offsets, nbytes = _place(graph, groups)
    # The end of the step is a barrier in any case.
    return Schedule((*barriers, False), offsets, nbytes)


def _groups(records: list[Record], *, overlap: bool) -> list[int]:
    """The number of the barrier interval of each record."""
    numbers: list[int] = []
    group = 0
    written: set[Stored] = set()
    caches_read: set[Tensor] = set()
    caches_written: set[Tensor] = set()
    for record in records:
        caches = set(record.caches)
        conflict = (
            bool(written.intersection(record.reads))
            or bool(caches_written & caches)
            or bool(caches_read.intersection(record.written_caches))
        )
        if numbers and (conflict or not overlap):
            group += 1
            written, caches_read, caches_written = set(), set(), set()
        numbers.append(group)
        written.update(record.writes)
        caches_written.update(record.written_caches)
        caches_read.update(caches)
    return numbers


def _place(graph: Graph, groups: list[int]) -> tuple[dict[Stored, int], int]:
    """Lowest free offset for each value, in the order in which they are made.

    Two values share memory only if all reads of one lie a barrier before the other is written.
    """
    last: dict[Stored, int] = {}
    for record, group in zip(graph.records, groups, strict=True):
        for value in (*record.writes, *record.reads):
            last[value] = group
    for view in graph.outputs:
        last[view.value] = len(graph.records)
    offsets: dict[Stored, int] = {}
    alive: list[Stored] = []
    end = 0
    for record, group in zip(graph.records, groups, strict=True):
        for value in record.writes:
            alive = [other for other in alive if last[other] >= group]
            offset = 0
            for other in sorted(alive, key=offsets.__getitem__):
                if offset + value.nbytes <= offsets[other]:
                    break
                offset = max(offset, aligned(offsets[other] + other.nbytes))
            offsets[value] = offset
            alive.append(value)
            end = max(end, aligned(offset + value.nbytes))
    return offsets, end
