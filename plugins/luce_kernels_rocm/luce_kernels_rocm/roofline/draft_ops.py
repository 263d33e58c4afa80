"""The ops that only drafts have.

A segment is a block of rows behind `context` tokens, of which the ring holds the last ones in
float16. Slots are greedy: what noise would read besides is not counted.
"""

from __future__ import annotations

from luce_core.ops.program import Work
from luce_core.weights.quant_types import QUANT_TYPES
from luce_kernels_rocm.configs import DRAFT_TILE, PIECE, VOCAB_PART
from luce_kernels_rocm.roofline.least import FLOAT, INDEX, VALUE
from luce_kernels_rocm.roofline.moved import Cost, Moved, cut, embedding, power_of_two
from luce_kernels_rocm.roofline.shapes import DraftShape, ModelShape, Step

# A place in the ranking of a row, and a key of noise.
_PLACE = 8


def draft_attention(model: ModelShape, window: int, step: Step) -> Cost:
    """Keys and values of a ring that the first row sees, and those of the block. A later row sees
    one less of the ring. Each tile of rows reads all of them."""
    layout, seen = model.layout, min(step.context, window - 1)
    kept = 2 * layout.kv_heads * layout.head_dim * VALUE
    rows = 2 * step.all_rows * model.heads * layout.head_dim * VALUE
    keys = step.segments * (seen + step.rows) * kept
    in_rings = (min(step.context, max(0, window - 1 - row)) for row in range(step.rows))
    pairs = step.segments * (sum(in_rings) + step.rows**2)
    positions = step.all_rows * INDEX
    work = Work(rows + keys + positions, float_operations=4 * pairs * model.heads * layout.head_dim)
    group = power_of_two(model.heads // layout.kv_heads)
    tiles = cut(step.rows, max(1, DRAFT_TILE // group))
    # Of its rows, and of the block's keys.
    places = layout.kv_heads * step.segments * (1 + tiles) * step.rows * INDEX
    return Cost(work, Moved(step.segments * tiles * layout.kv_heads, rows + tiles * keys + places))


def dynamic_conv(width: int, draft: DraftShape, step: Step) -> Cost:
    """Each row reads the factors of its channels, and as many rows before it as there are taps."""
    row = width * VALUE
    changes = draft.taps * (width // draft.group) * VALUE
    base = draft.taps * width * FLOAT
    operations = 3 * draft.taps * step.all_rows * width
    work = Work(step.all_rows * (2 * row + changes) + base, float_operations=operations)
    taken = step.segments * sum(min(draft.taps, 1 + place) for place in range(step.rows))
    nbytes = step.all_rows * (row + changes + base) + taken * row
    return Cost(work, Moved(step.all_rows * cut(width, PIECE), nbytes))


def candidate_select(vocab: int, draft: DraftShape, step: Step) -> Cost:
    """The least: of each row its logits, the codes of what it offers, and of the one token before
    it. Our programs take the codes of all tokens that could stand before a row, write them out in
    float32 and read them again, and write scores of all pairs."""
    rows, top_k, rank = step.all_logits, draft.top_k, draft.rank
    logits, hidden = rows * vocab * FLOAT, rows * rank * VALUE
    codes = rows * (1 + top_k) * QUANT_TYPES[draft.codebook].row_bytes(rank)
    operations = rows * (vocab + 3 * top_k * rank)
    work = Work(logits + hidden + codes + rows * INDEX, float_operations=operations)
    parts = cut(vocab, VOCAB_PART)
    places = rows * parts * (top_k * _PLACE + INDEX)
    offers = rows * (1 + top_k) * INDEX
    anchors = 2 * step.segments * INDEX
    before = embedding(draft.codebook, rows * top_k + step.segments, rank, FLOAT)
    after = embedding(draft.codebook, rows * top_k, rank, FLOAT)
    pairs = rows * top_k * (2 * rank * FLOAT + INDEX + FLOAT + top_k * FLOAT) + hidden
    walk = rows * (top_k * (FLOAT + INDEX) + 2 * INDEX)
    programs = rows * parts + 2 * rows + 2 * step.segments + before.programs + after.programs
    codes = before.nbytes + after.nbytes
    nbytes = logits + 2 * places + offers + anchors + codes + pairs + walk
    return Cost(work, Moved(programs, nbytes))


def draft_draw(rows: int, vocab: int) -> Cost:
    """The best of each part is written and read twice."""
    logits, parts = rows * vocab * FLOAT, cut(vocab, VOCAB_PART)
    work = Work(logits + rows * INDEX, float_operations=rows * vocab)
    between = 4 * rows * parts * (FLOAT + INDEX)
    return Cost(work, Moved(2 * rows * parts + rows, logits + between + rows * INDEX))


def ring_write(kv_heads: int, head_dim: int, rows: int) -> Cost:
    values = kv_heads * head_dim
    written = 4 * rows * values * VALUE
    programs = rows * cut(values, PIECE)
    return Cost(Work(written + rows * INDEX), Moved(programs, written + programs * INDEX))
