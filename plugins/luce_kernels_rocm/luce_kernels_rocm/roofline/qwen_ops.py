"""The convolution and the gates of Qwen3.5's layers.

Of the sigmoid and of silu four operations of a value count.
"""

from __future__ import annotations

from luce_core.ops.program import Work
from luce_kernels_rocm.configs import CONV_CHANNELS, CONV_ROWS, PIECE
from luce_kernels_rocm.roofline import least, moved
from luce_kernels_rocm.roofline.least import FLOAT, VALUE
from luce_kernels_rocm.roofline.moved import Cost, Moved, cut
from luce_kernels_rocm.roofline.shapes import DeltaShape, Step


def causal_conv1d(delta: DeltaShape, step: Step) -> Cost:
    """Each state once from memory and once to it, or what verify rows log instead. A program reads
    its factors and what came before its rows; of prompts a second launch reads a segment's last
    inputs again."""
    channels, past = delta.channels, delta.taps - 1
    rows = 2 * step.all_rows * channels * VALUE
    factors = channels * delta.taps * FLOAT
    states = step.segments * past * channels * FLOAT
    operations = step.all_rows * channels * (2 * delta.taps + 4)
    kept = step.all_rows * channels * FLOAT if step.is_verify else states
    work = Work(rows + factors + states + kept, float_operations=operations)
    blocks, pieces = cut(step.rows, CONV_ROWS), cut(channels, CONV_CHANNELS)
    programs = step.segments * blocks * pieces
    before = states + step.segments * (blocks - 1) * past * channels * VALUE
    nbytes = rows + step.segments * blocks * factors + before
    if step.prefill:
        fresh = min(step.rows, past)
        last = step.segments * channels * (fresh * VALUE + (past - fresh) * FLOAT)
        return Cost(work, Moved(programs + step.segments * pieces, nbytes + last + kept))
    return Cost(work, Moved(programs, nbytes + kept))


def gated_rms_norm(rows: int, heads: int, width: int) -> Cost:
    """A norm, whose programs read a gate for each value besides."""
    gates = rows * heads * width
    normed, asked = least.norm(rows, heads, width), moved.norm(rows, heads, width)
    work = Work(
        normed.read_bytes + gates * VALUE, float_operations=normed.float_operations + 5 * gates
    )
    return Cost(work, Moved(asked.programs, asked.nbytes + gates * VALUE))


def shared_gate(rows: int, width: int) -> Cost:
    """A sigmoid_gate of one value for a whole row."""
    values, programs = 2 * rows * width * VALUE, rows * cut(width, PIECE)
    work = Work(values + rows * VALUE, float_operations=rows * (width + 4))
    return Cost(work, Moved(programs, values + programs * VALUE))


def sigmoid_gate(rows: int, width: int) -> Cost:
    return Cost(least.elementwise(rows, width, operations=5), moved.elementwise(rows, width))
