"""The ops of hyper-connections, whose streams are float32."""

from __future__ import annotations

from luce_core.ops.program import Work
from luce_kernels_rocm.configs import PIECE, STREAM_PART
from luce_kernels_rocm.roofline.least import FLOAT, VALUE
from luce_kernels_rocm.roofline.moved import Cost, Moved, cut


def hyper_begin(rows: int, streams: int, width: int) -> Cost:
    nbytes = rows * width * (VALUE + streams * FLOAT)
    return Cost(Work(nbytes), Moved(rows * cut(width, PIECE), nbytes))


def hyper_mix(rows: int, streams: int, width: int, *, head: bool) -> Cost:
    """Each row reads all factors; sums of parts are written and read again."""
    mixes = streams if head else streams * (2 + streams)
    values, facts = streams * width, (mixes + (1 if head else 3)) * FLOAT
    own = rows * (values + mixes) * FLOAT
    factors = mixes * values * FLOAT
    work = Work(own + factors + facts, float_operations=rows * values * (2 * mixes + 2))
    parts = cut(values, STREAM_PART)
    between = 2 * rows * parts * (mixes + 1) * FLOAT
    return Cost(work, Moved(rows * (parts + 1), own + rows * (factors + facts) + between))


def hyper_merge(rows: int, streams: int, width: int) -> Cost:
    values, mix = rows * width * (streams * FLOAT + VALUE), streams * FLOAT
    programs = rows * cut(width, PIECE)
    work = Work(values + rows * mix, float_operations=2 * rows * streams * width)
    return Cost(work, Moved(programs, values + programs * mix))


def hyper_spread(rows: int, streams: int, width: int) -> Cost:
    """A program asks for its piece of all streams again for each stream that it writes."""
    stream, mix = rows * width * FLOAT, streams * (1 + streams) * FLOAT
    added = rows * width * VALUE
    operations = rows * width * streams * (1 + 2 * streams)
    work = Work(2 * streams * stream + added + rows * mix, float_operations=operations)
    programs = rows * cut(width, PIECE)
    nbytes = (streams + 1) * streams * stream + added + programs * mix
    return Cost(work, Moved(programs, nbytes))
