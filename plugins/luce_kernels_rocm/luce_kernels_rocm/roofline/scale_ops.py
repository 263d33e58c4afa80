"""The scales that files hold beside matrices: float32, one for a matrix."""

from __future__ import annotations

from luce_core.ops.program import Work
from luce_kernels_rocm.configs import PIECE
from luce_kernels_rocm.roofline.least import FLOAT, VALUE
from luce_kernels_rocm.roofline.moved import Cost, Moved, cut


def affine(rows: int, width: int) -> Cost:
    """Without a bias. Each program reads the scale."""
    values, programs = 2 * rows * width * VALUE, rows * cut(width, PIECE)
    work = Work(values + FLOAT, float_operations=rows * width)
    return Cost(work, Moved(programs, values + programs * FLOAT))


def moe_scale(rows: int, experts: int, top_k: int, width: int) -> Cost:
    """No two pairs of row and expert meet in an expert before all experts have one. Each program
    reads its pair's expert and scale."""
    pairs = rows * top_k
    values, programs = 2 * pairs * width * VALUE, pairs * cut(width, PIECE)
    read = (pairs + min(experts, pairs)) * FLOAT
    work = Work(values + read, float_operations=pairs * width)
    return Cost(work, Moved(programs, values + 2 * programs * FLOAT))
