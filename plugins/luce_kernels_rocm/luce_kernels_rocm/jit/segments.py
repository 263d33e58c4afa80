"""Which segment a row belongs to."""

from __future__ import annotations

import triton
import triton.language as tl

_AT_ONCE = tl.constexpr(64)


@triton.jit
def segment_of(starts, segments, row):
    """The segment whose rows `starts` [segments + 1] says to hold `row`: how many ended before."""
    found = tl.full([], 0, tl.int32)
    for first in range(0, segments, _AT_ONCE):
        number = first + tl.arange(0, _AT_ONCE)
        inside = number < segments
        stops = tl.load(starts + 1 + number, mask=inside, other=2147483647)
        found += tl.sum((stops <= row).to(tl.int32), 0)
    return found
