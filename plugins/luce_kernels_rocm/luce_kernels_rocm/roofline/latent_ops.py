"""The ops of attention over a window and compressed entries.

Rings and entries are float16. Row r of a segment stands at position context + r.
"""

from __future__ import annotations

from collections.abc import Iterator

from luce_core.ops.program import Work
from luce_kernels_rocm.configs import INDEX_ENTRIES, PIECE, WINDOW_HEADS
from luce_kernels_rocm.roofline.least import FLOAT, INDEX, VALUE
from luce_kernels_rocm.roofline.moved import Cost, Moved, cut
from luce_kernels_rocm.roofline.shapes import Compression, LatentShape, Step

# Times that the scores of a row are gone through: for each bit of the least one that is picked, for
# what lies above it, and for the picks.
_SCORE_PASSES = 33 + 2
# Of a channel that is folded into a pool.
_FOLD_OPERATIONS = 11


def window_write(head_dim: int, rows: int) -> Cost:
    """Rings are longer than a step has rows."""
    written, programs = 2 * rows * head_dim * VALUE, rows * cut(head_dim, PIECE)
    return Cost(Work(written + rows * INDEX), Moved(programs, written + programs * INDEX))


def window_attention(latent: LatentShape, ratio: int, top_k: int, step: Step) -> Cost:
    """Without entries if `ratio` is 0; with picks, so `sparse_attention`, if `top_k` is not.

    The least: all rows of a segment pick the same entries. A program reads the window and the
    entries of one row, for some of its heads."""
    heads, entry = latent.heads, latent.head_dim * VALUE
    counts = [min(count, top_k) if top_k else count for count in _entries(ratio, step)]
    windows = [min(step.context + 1 + row, latent.window) for row in range(step.rows)]
    picked = step.segments * sum(counts) * FLOAT if top_k else 0
    values = 2 * step.all_rows * heads * entry
    held = min(step.context, latent.window - 1) + step.rows + max(counts)
    sinks = heads * FLOAT
    pairs = step.segments * (sum(counts) + sum(windows))
    work = Work(
        values + step.segments * held * entry + picked + sinks + step.all_rows * INDEX,
        float_operations=4 * pairs * heads * latent.head_dim,
    )
    pieces = cut(heads, WINDOW_HEADS)
    tables = step.segments * sum(counts) * INDEX
    again = pieces * (pairs * entry + picked + tables + step.all_rows * INDEX)
    return Cost(work, Moved(step.all_rows * pieces, values + again + step.all_rows * sinks))


def index_topk(heads: int, head_dim: int, ratio: int, top_k: int, step: Step) -> Cost:
    """Rows that see no more entries than they pick are not scored. Programs of a row's entries
    read its queries; scores are written, and read by the program that picks."""
    query = heads * (head_dim * VALUE + FLOAT)
    scored = [count for count in _entries(ratio, step) if count > top_k]
    picks = step.all_rows * (top_k * FLOAT + INDEX)
    seen = max(scored, default=0) * head_dim * VALUE
    scores = step.segments * sum(scored)
    work = Work(
        step.segments * (len(scored) * query + seen) + picks,
        float_operations=scores * 2 * heads * (head_dim + 1),
    )
    entries = max(1, (step.context + step.rows) // ratio)
    programs = step.all_rows * (1 + (cut(entries, INDEX_ENTRIES) if entries > top_k else 0))
    queries = step.segments * sum(cut(count, INDEX_ENTRIES) for count in scored) * query
    keys = scores * (head_dim * VALUE + INDEX)
    again = scores * (1 + _SCORE_PASSES) * FLOAT
    return Cost(work, Moved(programs, queries + keys + again + picks))


def compress_kv(compression: Compression, rotary_dim: int, step: Step) -> Cost:
    """The least: each row's values and gates, the factors of its place in a window, and the pools
    that are open before and behind the rows. Behind more windows than one a second launch folds
    the last rows again."""
    ratio, series, head_dim = compression.ratio, compression.series, compression.head_dim
    begin, rows, stop = step.context, step.rows, step.context + step.rows
    channels, pool = head_dim * 2 * VALUE, 3 * head_dim * FLOAT
    is_inside = begin % ratio > 0
    opened = series if is_inside else int(series == 2 and begin >= ratio)
    completed = stop // ratio - begin // ratio
    turn = head_dim * FLOAT + rotary_dim // 2 * FLOAT
    entries = completed * head_dim * VALUE
    pools = (opened + series) * pool
    values = rows * series * channels
    factors = min(rows, ratio) * series * head_dim * FLOAT
    each = step.segments * (values + pools + entries)
    operations = _FOLD_OPERATIONS * step.all_rows * series * head_dim
    work = Work(each + factors + (turn if completed else 0), float_operations=operations)

    last = stop - max(begin, (stop - 1) // ratio * ratio)
    folds = rows * series
    if last < rows:
        before = min(ratio, rows - last)
        folds += last + (before if series == 2 else 0)
        is_second = (stop - 1) // ratio == begin // ratio + 1
        pools += pool if is_second and is_inside and series == 2 else 0
    folded = folds * (channels + head_dim * FLOAT)
    nbytes = step.segments * (folded + pools + entries + completed * (turn + INDEX))
    windows = (rows + ratio - 2) // ratio + 1
    return Cost(work, Moved(step.segments * (windows + (windows > 1)), nbytes))


def _entries(ratio: int, step: Step) -> Iterator[int]:
    """How many entries each row of a segment sees."""
    for row in range(step.rows):
        yield (step.context + 1 + row) // ratio if ratio else 0
