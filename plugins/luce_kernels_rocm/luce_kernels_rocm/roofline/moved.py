"""The bytes that a kernel's programs ask memory for, from the same tiles that its launches have.

What several programs ask for counts each time; caches may serve it. `programs` are those of the
launch: a test compares them with the grids of real calls.
"""

from __future__ import annotations

from typing import NamedTuple

from luce_core.ops.kv_layout import KvLayout
from luce_core.ops.program import Work
from luce_core.weights.quant_types import QUANT_TYPES
from luce_kernels_rocm.arch import Arch
from luce_kernels_rocm.configs import (
    ATTENTION_PART,
    NARROW_ROWS,
    PIECE,
    ROPE_HEADS,
    VOCAB_PART,
    decode_attention_config,
    narrow_config,
    prefill_attention_config,
    tiled_config,
)
from luce_kernels_rocm.quant_table import QUANTS
from luce_kernels_rocm.roofline.least import FLOAT, INDEX, VALUE
from luce_kernels_rocm.roofline.shapes import Step


class Moved(NamedTuple):
    """Programs of all launches of a call, and their bytes."""

    programs: int
    nbytes: int


class Cost(NamedTuple):
    """Of a call: what it cannot do without, and what its programs ask for."""

    least: Work
    moved: Moved


def product(arch: Arch, qtype: str, n: int, k: int, rows: int, out: int = VALUE) -> Moved:
    """Narrow: each program reads its part of the weight once, and all rows of x. Tiled: the weight
    again for each tile of rows, x again for each tile of columns. A tile's missing rows are read as
    repeats of the last one."""
    weight = n * QUANT_TYPES[qtype].row_bytes(k)
    written = rows * n * out
    if rows <= NARROW_ROWS:
        block = power_of_two(rows)
        programs = cut(n, narrow_config(arch, qtype, n, k, block).columns)
        return Moved(programs, weight + programs * block * k * VALUE + written)
    config = tiled_config(arch, qtype, n, k)
    row_tiles, column_tiles = cut(rows, config.rows), cut(n, config.columns)
    x = column_tiles * row_tiles * config.rows * k * VALUE
    return Moved(row_tiles * column_tiles, row_tiles * weight + x + written)


def norm(rows: int, heads: int, width: int) -> Moved:
    """Each program reads the factors."""
    programs = rows * heads
    return Moved(programs, programs * width * (2 * VALUE + FLOAT))


def rope(rows: int, heads: int, head_dim: int, rotary_dim: int) -> Moved:
    """Each program reads its row's position and all frequencies."""
    programs = rows * cut(heads, ROPE_HEADS)
    read = programs * (INDEX + rotary_dim // 2 * FLOAT)
    return Moved(programs, 2 * rows * heads * head_dim * VALUE + read)


def elementwise(rows: int, width: int) -> Moved:
    return Moved(rows * cut(width, PIECE), 3 * rows * width * VALUE)


def gather(rows: int, width: int) -> Moved:
    programs = rows * cut(width, PIECE)
    return Moved(programs, 2 * rows * width * VALUE + programs * INDEX)


def embedding(qtype: str, rows: int, k: int, out: int = VALUE) -> Moved:
    """Programs of each plane read the codes, and their row's token."""
    quant = QUANTS[qtype]
    groups = k // (quant.planes * quant.width)
    programs = rows * cut(groups, PIECE // quant.width) * quant.planes
    codes = quant.planes * QUANT_TYPES[qtype].row_bytes(k)
    return Moved(programs, rows * (codes + k * out) + programs * INDEX)


def greedy(rows: int, vocab: int) -> Moved:
    """The best of each part is written, and read by a second launch."""
    parts = cut(vocab, VOCAB_PART)
    between = 2 * rows * parts * (FLOAT + INDEX)
    return Moved(rows * parts + rows, rows * (vocab * FLOAT + INDEX) + between)


def kv_write(layout: KvLayout, rows: int) -> Moved:
    values = layout.kv_heads * layout.head_dim
    programs = rows * cut(values, PIECE)
    nbytes = rows * (2 * values * VALUE + layout.bytes_per_token) + programs * INDEX
    return Moved(programs, nbytes)


def attention(arch: Arch, layout: KvLayout, heads: int, step: Step) -> Moved:
    """Prompts: each tile of rows reads the keys up to its last row. Decode rows: each tile reads
    all keys once, and what a part finds is written and read again, in float32."""
    kv_heads, head_dim = layout.kv_heads, layout.head_dim
    group = power_of_two(heads // kv_heads)
    types = (layout.k_type, layout.v_type)
    values = 2 * step.all_rows * heads * head_dim * VALUE
    if step.prefill:
        tile = prefill_attention_config(arch, group, head_dim, types).rows
        tiles = cut(step.rows, tile)
        keys = sum(step.context + min(step.rows, (place + 1) * tile) for place in range(tiles))
        tables = step.segments * kv_heads * keys * INDEX
        read = step.segments * keys * layout.bytes_per_token + tables
        return Moved(step.segments * tiles * kv_heads, values + read)
    tiles = cut(step.rows, decode_attention_config(arch, group, head_dim).rows)
    length = step.context + step.rows
    parts = cut(length, ATTENTION_PART)
    read = step.segments * tiles * length * (layout.bytes_per_token + kv_heads * INDEX)
    between = 2 * step.all_rows * heads * parts * (head_dim + 2) * FLOAT
    programs = step.segments * tiles * parts * kv_heads + step.all_rows * heads
    return Moved(programs, values + read + between)


def cut(size: int, part: int) -> int:
    return -(-size // part)


def power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
