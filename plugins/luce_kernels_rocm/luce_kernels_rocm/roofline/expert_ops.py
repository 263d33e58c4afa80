"""The ops of a mixture of experts.

Which experts rows ask for is data. Here they are spread evenly: no two pairs of row and expert meet
in an expert before all experts have one.
"""

from __future__ import annotations

from luce_core.ops.program import Work
from luce_core.weights.quant_types import QUANT_TYPES
from luce_kernels_rocm.arch import Arch
from luce_kernels_rocm.configs import NARROW_ROWS, PIECE, grouped_config, pair_config
from luce_kernels_rocm.roofline.least import FLOAT, INDEX, VALUE
from luce_kernels_rocm.roofline.moved import Cost, Moved, cut
from luce_kernels_rocm.roofline.shapes import ExpertProduct

# A pair's number in the order of experts.
_ORDER = 8


def moe_matmul(arch: Arch, product: ExpertProduct, rows: int) -> Cost:
    """Few rows: each pair reads its expert's weight, and its input once for each tile of columns.
    More: a tile of an expert's pairs reads the weight once. Sorting the pairs is not counted."""
    pairs, k, n = rows * product.top_k, product.k, product.n
    asked = min(product.experts, pairs)
    weight = n * QUANT_TYPES[product.qtype].row_bytes(k)
    inputs = (pairs if product.own_inputs else rows) * k * VALUE
    written = pairs * n * VALUE
    work = Work(
        asked * weight + inputs + pairs * FLOAT + written, float_operations=2 * pairs * n * k
    )
    if rows <= NARROW_ROWS:
        columns = cut(n, pair_config(arch, product.qtype, n, k).columns)
        taken = pairs * columns * (k * VALUE + FLOAT)
        return Cost(work, Moved(pairs * columns, pairs * weight + taken + written))
    config = grouped_config(arch, product.qtype, n, k)
    columns = cut(n, config.columns)
    each, more = divmod(pairs, asked)
    tiles = (asked - more) * cut(each, config.rows) + more * cut(each + 1, config.rows)
    programs = min(pairs, pairs // config.rows + product.experts) * columns
    places = programs * INDEX + tiles * columns * (product.experts + 4) * INDEX
    taken = pairs * columns * (k * VALUE + _ORDER)
    return Cost(work, Moved(programs, tiles * weight + taken + places + written))


def moe_route(rows: int, experts: int, top_k: int) -> Cost:
    """Float32 logits, and a bias that each row's program reads. A score takes four operations, and
    is compared for each expert that is taken."""
    each = (experts + 2 * top_k) * FLOAT
    bias = experts * FLOAT
    work = Work(rows * each + bias, float_operations=rows * experts * (4 + top_k))
    return Cost(work, Moved(rows, rows * (each + bias)))


def moe_route_by_token(rows: int, top_k: int) -> Cost:
    """A row of the table, and the logits of its experts."""
    nbytes = rows * (INDEX + 4 * top_k * FLOAT)
    return Cost(Work(nbytes, float_operations=8 * rows * top_k), Moved(rows, nbytes))


def moe_sum(rows: int, top_k: int, width: int) -> Cost:
    values = rows * (top_k + 1) * width * VALUE
    programs, shares = rows * cut(width, PIECE), top_k * FLOAT
    work = Work(values + rows * shares, float_operations=2 * rows * top_k * width)
    return Cost(work, Moved(programs, values + programs * shares))


def group_route(rows: int, groups: int) -> Cost:
    written = rows * 2 * groups * FLOAT
    return Cost(Work(written), Moved(rows, written))
