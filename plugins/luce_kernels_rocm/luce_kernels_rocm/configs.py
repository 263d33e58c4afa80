"""Tile sizes and waves per kernel: looked up when a layer makes its launches, never measured while
serving, in the table of `luce tune` if one was read, else computed here. A configuration depends on
the layer's constants and the architecture; on the batch only where `quant_matmul` says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from luce_kernels_rocm.arch import Arch
from luce_kernels_rocm.quant_table import QUANTS
from luce_kernels_rocm.tiles import tiles

# Ops that go through rows piece by piece.
PIECE = 1024
PIECE_WARPS = 4

ROPE_HEADS = 4
ROPE_WARPS = 1

ROUTE_WARPS = 1

# Values of a row's streams that one program multiplies, and how many of them at once.
STREAM_PART = 1024
STREAM_VALUES = 128
STREAM_WARPS = 4

# Channels of a convolution that a program has, and how many rows of a segment it goes through.
CONV_CHANNELS = 256
CONV_ROWS = 32
CONV_WARPS = 4

# Waves that fold the rows of a window and write its entry.
WINDOW_WARPS = 4

# Columns of a recurrent state that a program keeps in registers: one wave sums without waiting for
# others, and a row of its tile is a whole memory transaction.
STATE_COLUMNS = 16
STATE_WARPS = 1

# Rows of a prompt whose delta rule is solved at once: two tiles of matrix instructions. Columns of
# the state that a program multiplies.
DELTA_CHUNK = 32
DELTA_TABLE_WARPS = 4
DELTA_COLUMNS = 32
DELTA_WARPS = 4

# Logits that one program looks through.
VOCAB_PART = 4096
VOCAB_PART_WARPS = 4

# Tokens that are given noise together, if one of them could win by it.
NOISE_AT_ONCE = 512

# Logits that are ranked at once, by one program for a row.
RANKED_AT_ONCE = 1024
RANKED_WARPS = 8

# Values of codebook rows whose products are summed at once.
PAIR_VALUES = 32
PAIR_WARPS = 4

ROW_VALUES_PER_WAVE = 512

# Rows that the narrow product takes: with more, multiplying costs more than reading the weight.
NARROW_ROWS = 8

# What programs of products may read of a norm's factors, each of them anew, to save a launch: as
# much as caches give in about the time that a launch takes.
NORM_AGAIN_BYTES = 2 << 20


def warps_for(values: int) -> int:
    """Waves of a program that holds a row of so many values: 16 values a lane, at most 8 waves."""
    return max(1, min(8, values // ROW_VALUES_PER_WAVE))


@dataclass(frozen=True, slots=True)
class MatmulConfig:
    """A tile of a product: `rows` of x, `columns` (rows of the weight), and how many groups of a
    plane are dequantised at once."""

    rows: int
    columns: int
    groups: int
    warps: int
    stages: int = 1


# Values of one plane that a program of the narrow product holds at once, per row of the weight and
# in all: 8 of them a lane, and as many sums for each row of x.
_NARROW_VALUES = 256
_NARROW_TILE = 1024


# Types whose codes take so many registers that a tile of products needs more lanes.
_WIDE_CODES = frozenset({"Q5_0", "Q5_1", "Q6_K", "MXFP4", "ROCMFP3", "ROCMFP4", "ROCMFP4_FAST"})


def narrow_config(arch: Arch, qtype: str, n: int, k: int, rows: int) -> MatmulConfig:
    """For up to NARROW_ROWS rows: as much of the weight in flight as registers allow. The tile is
    the same for every count of rows."""
    tile = tiles().find("narrow", qtype, n, k)
    if tile is not None:
        return MatmulConfig(rows, tile.columns, tile.depth, tile.warps, tile.stages)
    quant = QUANTS[qtype]
    groups = _power_of_two_up_to(min(_NARROW_VALUES, k // quant.planes) // quant.width)
    columns = max(1, _NARROW_TILE // (groups * quant.width))
    return MatmulConfig(rows, columns, groups, warps=4)


def pair_config(arch: Arch, qtype: str, n: int, k: int) -> MatmulConfig:
    """For one row with one expert: more lanes than the narrow product, whose sums of one row leave
    registers free for codes."""
    return replace(narrow_config(arch, qtype, n, k, 1), warps=8)


def tiled_config(arch: Arch, qtype: str, n: int, k: int) -> MatmulConfig:
    """For more rows: tiles that fill the matrix instructions of the architecture. The operands of
    mma.sync lie in registers, dequantised there by several waves: half the depth is what fits."""
    tile = tiles().find("tiled", qtype, n, k)
    if tile is not None:
        return MatmulConfig(tile.rows, tile.columns, tile.depth, tile.warps, tile.stages)
    quant = QUANTS[qtype]
    depth = 32 if arch.name in ("sm_80", "sm_120") else 64
    groups = _power_of_two_up_to(min(depth, k // quant.planes) // quant.width)
    return MatmulConfig(64, 64, groups, warps=8 if qtype in _WIDE_CODES else 4)


def grouped_config(arch: Arch, qtype: str, n: int, k: int) -> MatmulConfig:
    """For the rows of one expert, of which a prompt has a few dozen."""
    return replace(tiled_config(arch, qtype, n, k), rows=32)


def _power_of_two_up_to(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """`rows` of a segment times the heads of a group are one tile of queries; `keys` of the cache
    are read at once; a head is worked on in `pieces`. `reload` reads the queries for each run of
    keys, which more pieces than one need."""

    rows: int
    keys: int
    warps: int
    pieces: int = 1
    reload: bool = False


# Keys that one program goes through for decode and verify rows. Parts lie at fixed positions.
ATTENTION_PART = 512
# Parts that are merged at once, in order.
MERGED_PARTS = 16

_DECODE_TILE = 16  # the least that matrix instructions take
_PREFILL_TILE = 64
_WIDE_HEAD = 256
_FEW_KEYS = 16
QUANTISED_CACHES = frozenset({"q8_0", "q4_0"})


def decode_attention_config(
    arch: Arch, group: int, head_dim: int, cache_types: tuple[str, str]
) -> AttentionConfig:
    """For rows of decode segments: a tile as small as matrix instructions allow."""
    rows = max(1, _DECODE_TILE // group)
    found = _attention_config(arch, rows, head_dim, cache_types, warps=4)
    return _tuned(found, "decode_attention", group, head_dim)


def prefill_attention_config(
    arch: Arch, group: int, head_dim: int, cache_types: tuple[str, str]
) -> AttentionConfig:
    """For rows of prompts."""
    tile = _PREFILL_TILE // 2 if _is_heavy(head_dim, cache_types) else _PREFILL_TILE
    warps = 8 if head_dim >= _WIDE_HEAD else 4
    rows = max(1, tile // group)
    found = _attention_config(arch, rows, head_dim, cache_types, warps=warps)
    return _tuned(found, "prefill_attention", group, head_dim)


def _tuned(config: AttentionConfig, kernel: str, group: int, head_dim: int) -> AttentionConfig:
    """With the tile that was measured on the device, if there is a table of them."""
    tile = tiles().find(kernel, group, head_dim)
    if tile is None:
        return config
    return replace(config, rows=tile.rows, keys=tile.depth, warps=tile.warps)


def _attention_config(
    arch: Arch, rows: int, head_dim: int, cache_types: tuple[str, str], *, warps: int
) -> AttentionConfig:
    """Codes of wide heads are dequantised few keys at a time, or registers do not last on AMD.
    RDNA3 keeps operands of matrix instructions twice, and has no registers for wide queries."""
    is_heavy = _is_heavy(head_dim, cache_types)
    keys = _FEW_KEYS if is_heavy else 2 * _FEW_KEYS
    is_rdna3 = arch.name.startswith("gfx11")
    is_quantised = not QUANTISED_CACHES.isdisjoint(cache_types)
    if is_rdna3 and is_quantised and _WIDE_HEAD // 2 <= head_dim < _WIDE_HEAD:
        return AttentionConfig(rows, _FEW_KEYS, warps, pieces=2, reload=True)
    if head_dim < _WIDE_HEAD or not is_rdna3:
        return AttentionConfig(rows, keys, warps)
    if is_heavy:
        return AttentionConfig(rows, keys, 8, reload=True)
    return AttentionConfig(rows, keys, warps, pieces=4, reload=True)


def _is_heavy(head_dim: int, cache_types: tuple[str, str]) -> bool:
    return head_dim >= _WIDE_HEAD and not QUANTISED_CACHES.isdisjoint(cache_types)


# Rows of a block times the heads of a group that one program of draft attention has: the least that
# matrix instructions take. And heads of a row that one program of attention over a window has.
DRAFT_TILE = 16
WINDOW_HEADS = 16

# Entries of a ring that are read at once: the least that matrix instructions take, as the sums of
# wide rows need the registers.
RING_KEYS = 16


def ring_warps(head_dim: int) -> int:
    """Waves of attention over rings, by the values of a row."""
    return 8 if head_dim > 128 else 4


@dataclass(frozen=True, slots=True)
class RingConfig:
    """Of attention over rings: a row is worked on in `pieces`."""

    warps: int
    pieces: int = 1


def ring_config(arch: Arch, head_dim: int, cache_type: str) -> RingConfig:
    """By the values of a row. AMD's GPUs have no registers for all of a wide row, and RDNA3 keeps
    operands of matrix instructions twice; codes of more pieces than two take more than they save.
    """
    if head_dim <= 128 or arch.backend != "hip":
        return RingConfig(ring_warps(head_dim))
    is_plain_on_rdna3 = arch.name.startswith("gfx11") and cache_type not in QUANTISED_CACHES
    return RingConfig(ring_warps(head_dim), pieces=4 if is_plain_on_rdna3 else 2)


# Entries that a program of the indexer scores, and that a picking program looks through at once;
# and the most scores that are kept at once.
INDEX_ENTRIES = 64
INDEX_PIECE = 1024
INDEX_SCORES = 1 << 24
INDEX_WARPS = 4
