"""gated_delta: what it cannot do without, and what its programs ask memory for.

A segment's first row stands at position `context`. Verify segments log their rows and leave the
state as it is.
"""

from __future__ import annotations

from luce_core.ops.program import Work
from luce_kernels_rocm.configs import DELTA_CHUNK, DELTA_COLUMNS, STATE_COLUMNS
from luce_kernels_rocm.roofline.least import FLOAT, VALUE
from luce_kernels_rocm.roofline.moved import Moved
from luce_kernels_rocm.roofline.shapes import DeltaShape, Step


def least(delta: DeltaShape, step: Step) -> Work:
    """Each state once from memory and once to it, or the logs of verify rows instead. A row decays
    the state, reads it by key and by query and adds to it: seven operations a value."""
    keys = 2 * delta.key_heads * delta.key_dim
    values = 2 * delta.value_heads * (1 + delta.value_dim)  # and their rates; value and output
    return Work(
        step.all_rows * (keys + values) * VALUE + _kept(delta, step, step.rows),
        float_operations=7 * step.all_rows * delta.state_values,
    )


def moved(delta: DeltaShape, step: Step) -> Moved:
    """Each program reads keys and queries for its columns; tables of a chunk are written once, and
    read by the programs of all columns."""
    before = -step.context % DELTA_CHUNK
    chunks = max(0, step.rows - before) // DELTA_CHUNK
    if not step.prefill or step.all_rows < DELTA_CHUNK:
        return _in_order(delta, step, step.rows)
    first = before if chunks else step.rows
    last = step.rows - first - chunks * DELTA_CHUNK
    parts = (
        _chunks(delta, step, chunks),
        _in_order(delta, step, first),
        _in_order(delta, step, last),
    )
    return Moved(sum(part.programs for part in parts), sum(part.nbytes for part in parts))


def _in_order(delta: DeltaShape, step: Step, rows: int) -> Moved:
    """Programs without rows return at once."""
    parts = -(-delta.value_dim // STATE_COLUMNS)
    programs = step.segments * delta.value_heads * parts
    if rows == 0:
        return Moved(programs, 0)
    values = 2 * step.segments * delta.value_heads * delta.value_dim
    read = programs * (2 * delta.key_dim + 2)
    return Moved(programs, rows * (read + values) * VALUE + _kept(delta, step, rows))


def _kept(delta: DeltaShape, step: Step, rows: int) -> int:
    """Bytes of the states, and of what is written of them or of `rows` verify rows."""
    states = step.segments * delta.state_values
    logs = step.segments * rows * delta.log_values
    return (states + (logs if step.is_verify else states)) * FLOAT


def _chunks(delta: DeltaShape, step: Step, chunks: int) -> Moved:
    parts = -(-delta.value_dim // DELTA_COLUMNS)
    heads = step.segments * delta.value_heads
    named = min(step.all_rows // DELTA_CHUNK, step.rows // DELTA_CHUNK)
    programs = heads * (named + parts)
    if chunks == 0:
        return Moved(programs, 0)
    pairs = 2 * DELTA_CHUNK * delta.key_dim * VALUE
    tables = 2 * DELTA_CHUNK * DELTA_CHUNK * VALUE + DELTA_CHUNK * FLOAT
    made = pairs + 2 * DELTA_CHUNK * VALUE + tables
    taken = parts * (pairs + tables) + 2 * DELTA_CHUNK * delta.value_dim * VALUE
    states = 2 * step.segments * delta.state_values * FLOAT
    return Moved(programs, heads * chunks * (made + taken) + states)
