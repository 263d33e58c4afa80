"""A line of a step's table."""

from __future__ import annotations

from luce_core.ops.device_tools import OpCost
from luce_core.ops.program import Work
from luce_kernels_rocm.roofline.moved import Moved


def entry(op: str, what: str, calls: int, work: Work, found: Moved) -> OpCost:
    return OpCost(op=op, what=what, calls=calls, least=work, moved_bytes=found.nbytes)
