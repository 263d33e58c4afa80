"""What brings the state of slots behind the rows of a verify step that became durable.

Here all of them do, which takes a replay longest.
"""

from __future__ import annotations

from luce_core.ops.program import Work
from luce_kernels_rocm.configs import CONV_CHANNELS, STATE_COLUMNS
from luce_kernels_rocm.roofline.least import FLOAT, INDEX
from luce_kernels_rocm.roofline.moved import Cost, Moved, cut
from luce_kernels_rocm.roofline.shapes import DeltaShape, Step


def conv_replay(delta: DeltaShape, step: Step) -> Cost:
    """A state has as many rows as are read, from the log or of those before it. A program reads its
    segment's count."""
    states = 2 * step.segments * (delta.taps - 1) * delta.channels * FLOAT
    programs = step.segments * cut(delta.channels, CONV_CHANNELS)
    work = Work(states + step.segments * INDEX)
    return Cost(work, Moved(programs, states + programs * INDEX))


def gated_delta_replay(delta: DeltaShape, step: Step) -> Cost:
    """Each state once from memory and once to it. A row decays it, and adds a product to it: three
    operations a value. Each program reads the keys and decays of its head."""
    rows, heads = step.all_rows, delta.value_heads
    states = 2 * step.segments * delta.state_values * FLOAT
    work = Work(
        states + delta.log_values * rows * FLOAT + step.segments * INDEX,
        float_operations=3 * rows * delta.state_values,
    )
    parts = cut(delta.value_dim, STATE_COLUMNS)
    programs = step.segments * heads * parts
    again = rows * heads * parts * (delta.key_dim + 1)
    logged = rows * heads * delta.value_dim
    return Cost(work, Moved(programs, states + (again + logged) * FLOAT + programs * INDEX))
