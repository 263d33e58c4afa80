"""Which steps share a graph: what a graph fixes, and how a step is filled up to it.

A graph keeps the grids of its launches, so it fixes every count that a host function reads from
the batch. Counts are rounded up: rows to a power of two with null rows, the longest segment and the
context to one for the grids alone, which may be larger than a step needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from luce_core.batch.packed import PackedBatch
from luce_core.ops.record import Recording

# With more rows the work of a step is longer than its launches.
MOST_ROWS = 256
# Below this many keys every step has the same grid.
LEAST_CONTEXT = 512


@dataclass(frozen=True, slots=True)
class GraphShape:
    """The counts of a captured step. `longest` bounds the rows of its segments, `context` the keys
    that a row attends to."""

    rows: int
    segments: int
    logits: int
    longest: int
    context: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a graph may hold."""

    rows: int
    logits: int
    segments: int

    @classmethod
    def of(cls, recording: Recording, *, segments: int) -> Limits:
        """`segments` may exceed the recording's where no buffer has a row for each."""
        return cls(min(MOST_ROWS, recording.max_rows), recording.max_logits, segments)


def shape_of(batch: PackedBatch, limits: Limits) -> GraphShape | None:
    """The graph for a batch; None if it has prompt rows, no rows, or more than a graph takes,
    or logits on some rows of which nothing is known."""
    rows, segments, logits = batch.rows, batch.segments, batch.logits
    if batch.num_prefill or not 0 < rows <= limits.rows:
        return None
    if logits not in (0, rows, rows - segments):
        return None
    longest, context = power_of_two(batch.max_query), _context(batch.max_context)
    most = limits.rows
    if logits:
        most = min(most, limits.logits)
    # A draft's steps have logits on all rows of a segment but the first, and are few: those shapes
    # are captured as they are.
    if logits in (0, rows) and rows <= most:
        filled = min(power_of_two(rows), most)
        null_segments = len(null_lengths(filled - rows, batch.max_query))
        if segments + null_segments <= limits.segments:
            return GraphShape(
                filled,
                segments + null_segments,
                filled if logits else 0,
                longest,
                context,
            )
    return GraphShape(rows, segments, logits, longest, context)


def decode_shapes(limits: Limits) -> tuple[GraphShape, ...]:
    """Those of steps of one row a segment: 1, 2, 4, ... rows, in a short context."""
    most = min(limits.rows, limits.logits, limits.segments)
    counts = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return tuple(GraphShape(n, n, n, 1, LEAST_CONTEXT) for n in (*counts, most))


def null_lengths(rows: int, longest: int) -> tuple[int, ...]:
    """Rows of each null segment that fill up a step. None is longer than the longest of the step:
    state that ops keep by slot has room for no more."""
    whole, rest = divmod(rows, longest)
    return (longest,) * whole + ((rest,) if rest else ())


def power_of_two(number: int) -> int:
    """The least that is not smaller."""
    return 1 << (number - 1).bit_length()


def _context(keys: int) -> int:
    return max(LEAST_CONTEXT, power_of_two(keys))
