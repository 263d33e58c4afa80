"""Tile sizes and waves per kernel: looked up when a layer makes its launches, never measured while
serving, in the table of `luce tune` if one was read, else computed here. A configuration depends on
the layer's constants and the architecture; on the batch only where `quant_matmul` says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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
# Architectures and types, the same for that compiler alone; and of the narrow product.
_WIDE_TILED = frozenset({("sm_80", "Q4_1"), ("sm_80", "IQ4_XS")})
_WIDE_NARROW = frozenset({("sm_120", "F16")})


def narrow_config(arch: Arch, qtype: str, n: int, k: int, rows: int) -> MatmulConfig:
    """For up to NARROW_ROWS rows: as much of the weight in flight as registers allow. The tile is
    the same for every count of rows."""
    tile = tiles().find("narrow", qtype, n, k)
    if tile is not None:
        return MatmulConfig(rows, tile.columns, tile.depth, tile.warps, tile.stages)
    quant = QUANTS[qtype]
    groups = _power_of_two_up_to(min(_NARROW_VALUES, k // quant.planes) // quant.width)
    columns = max(1, _NARROW_TILE // (groups * quant.width))
    warps = 8 if (arch.name, qtype) in _WIDE_NARROW else 4
    return MatmulConfig(rows, columns, groups, warps)


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
    is_wide = qtype in _WIDE_CODES or (arch.name, qtype) in _WIDE_TILED
    return MatmulConfig(64, 64, groups, warps=8 if is_wide else 4)


def grouped_config(arch: Arch, qtype: str, n: int, k: int) -> MatmulConfig:
    """For the rows of one expert, of which a prompt has a few dozen."""
    return replace(tiled_config(arch, qtype, n, k), rows=32)


def _power_of_two_up_to(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


def _power_of_two_from(number: int) -> int:
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """`rows` of a segment times the heads of a group are one tile of queries; `keys` of the cache
    are read at once; a head is worked on in `pieces`, one after the other for prompts, side by side
    for decode rows. `reload` reads the queries of prompts for each run of keys, which more pieces
    than one need."""

    rows: int
    keys: int
    warps: int
    pieces: int = 1
    reload: bool = False


# Keys that one program goes through for decode and verify rows. Parts lie at fixed positions.
ATTENTION_PART = 512
# Parts that are merged at once, in order.
MERGED_PARTS = 16

# Values of a head that one wave works on for decode rows: a group of a quantised cache.
WAVE_VALUES = 32

_DECODE_TILE = 16  # the least that matrix instructions take
_PREFILL_TILE = 64
_WIDE_HEAD = 256
_FEW_KEYS = 16
_PIECE_VALUES = 128  # of a wide head of prompts on AMD's GPUs
QUANTISED_CACHES = frozenset({"q8_0", "q4_0"})


def decode_attention_config(arch: Arch, group: int, head_dim: int) -> AttentionConfig:
    """For rows of decode segments: a tile as small as matrix instructions allow, and a wave for
    each piece of a head. AMD's GPUs have no registers for more queries than such a tile has with
    as many keys, NVIDIA's none for the codes of keys and values in as many waves as the widest
    heads have pieces."""
    rows = max(1, _DECODE_TILE // group)
    is_large = rows * group > _DECODE_TILE and arch.backend == "hip"
    keys = _FEW_KEYS if is_large else wave_keys(head_dim)
    most = 8 if arch.backend == "cuda" else 16
    found = AttentionConfig(rows, keys, warps=min(most, wave_pieces(head_dim)))
    found = _tuned(found, "decode_attention", group, head_dim)
    return replace(found, pieces=min(found.warps, wave_pieces(head_dim)))


def wave_pieces(head_dim: int) -> int:
    """Pieces of a head that waves work on side by side: each multiplies its own with the queries,
    and holds its own of the sums."""
    return max(1, _power_of_two_from(head_dim) // WAVE_VALUES)


def wave_keys(head_dim: int) -> int:
    """Keys that are read at once where waves work on pieces: half as many of the widest heads,
    whose many waves share the registers."""
    return _FEW_KEYS if head_dim > _WIDE_HEAD else 2 * _FEW_KEYS


def all_registers(arch: Arch, warps: int) -> dict[str, Any]:
    """The compile option with which a program of so many waves may have all registers. Without it
    NVIDIA's compiler keeps some in memory where one program more can run beside then."""
    return {"maxnreg": min(255, (1 << 16) // (32 * warps))} if arch.backend == "cuda" else {}


def prefill_attention_config(
    arch: Arch, group: int, head_dim: int, cache_types: tuple[str, str]
) -> AttentionConfig:
    """For rows of prompts."""
    found = _prompt_tile(arch, head_dim, cache_types)
    found = replace(found, rows=max(1, found.rows // group))
    return _tuned(found, "prefill_attention", group, head_dim)


def _tuned(config: AttentionConfig, kernel: str, group: int, head_dim: int) -> AttentionConfig:
    """With the tile that was measured on the device, if there is a table of them."""
    tile = tiles().find(kernel, group, head_dim)
    if tile is None:
        return config
    return replace(config, rows=tile.rows, keys=tile.depth, warps=tile.warps)


def _prompt_tile(arch: Arch, head_dim: int, cache_types: tuple[str, str]) -> AttentionConfig:
    """With the queries of a tile in place of its rows: what registers hold without a spill. AMD's
    GPUs have none for all of a wide head; RDNA3 keeps operands of matrix instructions twice."""
    is_rdna3 = arch.name.startswith("gfx11")
    is_quantised = not QUANTISED_CACHES.isdisjoint(cache_types)
    if head_dim < _WIDE_HEAD:
        is_middle = head_dim >= _WIDE_HEAD // 2
        if is_middle and is_rdna3:
            return AttentionConfig(_PREFILL_TILE, _FEW_KEYS, 8, reload=True)
        # mma.sync has its operands in registers.
        warps = 8 if is_middle and arch.name in ("sm_80", "sm_120") else 4
        return AttentionConfig(_PREFILL_TILE, 2 * _FEW_KEYS, warps)
    if is_quantised:
        warps = 16 if is_rdna3 else 8
        return AttentionConfig(_PREFILL_TILE // 2, _FEW_KEYS, warps, reload=arch.backend == "hip")
    if arch.backend == "hip":
        pieces = _power_of_two_from(head_dim) // _PIECE_VALUES
        return AttentionConfig(_PREFILL_TILE, _FEW_KEYS, 8, pieces, reload=True)
    return AttentionConfig(_PREFILL_TILE, 2 * _FEW_KEYS, 8)


# Rows of a block times the heads of a group that one program of draft attention has: the least that
# matrix instructions take. And heads of a row that one program of attention over a window has.
DRAFT_TILE = 16
WINDOW_HEADS = 16

# Entries of a draft's ring that are read at once: the least that matrix instructions take.
DRAFT_KEYS = 16

# Entries that a program of the indexer scores, and that a picking program looks through at once;
# and the most scores that are kept at once.
INDEX_ENTRIES = 64
INDEX_PIECE = 1024
INDEX_SCORES = 1 << 24
INDEX_WARPS = 4
