// Attention of a draft's blocks over their slots' rings and their own rows.
//
// Keys are taken in the order of their positions, in parts of at most LK_KV_PART that begin at the
// first key of the ring and at the block's first row: a row's bits depend on its block alone.
#include <stdlib.h>

#include "attention_tile.h"
#include "hybrid_kernels.h"
#include "slot_segments.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

constexpr int LINES = 4 * TILE_ROWS;  // of a unit: heads of rows that share a KV head

// One block's keys for one KV head: `past` entries of the ring from position `first` on, then
// `fresh` rows of the block itself.
struct block_keys {
    const lk_draft_attention_args* args;
    lk_slot_segment segment;
    int32_t kv_head, first, past, fresh;
};

struct workspace {
    float* q;         // [LINES][dim]
    float* scores;    // [LINES][LK_KV_PART]
    float* sums;      // [LINES][padded(dim)]
    float* part;      // likewise
    float* block;     // [KV_KEYS][padded(dim)]
    softmax_state state[LINES];
};

int32_t lower(int32_t a, int32_t b) { return a < b ? a : b; }
int32_t higher(int32_t a, int32_t b) { return a > b ? a : b; }

workspace take_workspace(lk_worker* worker, int32_t dim) {
    const int64_t width = padded(dim);
    const int64_t floats = LINES * (dim + LK_KV_PART + 2 * width) + KV_KEYS * width;
    // What LK_MOST_KEY_DIM allows.
    if (worker->scratch_bytes < floats * (int64_t)sizeof(float)) abort();
    workspace work;
    work.block = (float*)worker->scratch;
    work.scores = work.block + KV_KEYS * width;
    work.sums = work.scores + LINES * LK_KV_PART;
    work.part = work.sums + LINES * width;
    work.q = work.part + LINES * width;
    return work;
}

block_keys find_keys(const lk_draft_attention_args& args, const lk_batch* batch, int32_t number,
                     int32_t kv_head) {
    const lk_slot_segment segment = lk_segment_at(batch, number);
    const int32_t past = batch->context_lens[number], ring = args.k_ring.block_size;
    const int32_t seen = lower(args.window ? lower(ring, args.window - 1) : ring, past);
    return {&args, segment, kv_head, past - seen, seen, segment.count};
}

// Up to KV_KEYS of a block's keys (or values) from key `at` on, of the ring or of the own rows.
stored_rows rows_from(const block_keys& keys, const lk_cache& ring, const lk_rows& own, int32_t at,
                      int32_t stop) {
    stored_rows found;
    found.count = lower(stop - at, KV_KEYS);
    const bool is_own = at >= keys.past;
    found.bytes = (int32_t)cache_row_bytes(is_own ? LK_F32 : ring.type, ring.dim);
    for (int32_t i = 0; i < found.count; i++) {
        const int64_t key = at + i;
        if (is_own) {
            const int64_t row = keys.segment.first + key - keys.past;
            found.row[i] = (const uint8_t*)(own.data + row * own.stride +
                                            (int64_t)keys.kv_head * ring.dim);
        } else {
            const int64_t entry = (keys.first + key) % ring.block_size;
            found.row[i] = cache_row(
                &ring, (int64_t)keys.segment.slot * ring.block_size + entry, keys.kv_head);
        }
    }
    return found;
}

// Which of the keys the row at `place` of its block sees: begin <= key < end.
struct key_span {
    int32_t begin, end;
};

key_span seen_keys(const block_keys& keys, int32_t place) {
    const int32_t own = keys.past + place, window = keys.args->window;
    key_span span = {0, keys.past + keys.fresh};
    if (window) span = {higher(0, own - window + 1), lower(span.end, own + window)};
    if (keys.args->causal) span.end = lower(span.end, own + 1);
    return span;
}

// Scores that a line does not see become minus infinity.
void hide(float* scores, key_span seen, int32_t begin, int32_t end) {
    for (int32_t key = begin; key < lower(end, seen.begin); key++)
        scores[key - begin] = -__builtin_inff();
    for (int32_t key = higher(begin, seen.end); key < end; key++)
        scores[key - begin] = -__builtin_inff();
}

// Keys begin..end - 1, all of the ring or all of the block, for `lines` lines from line `from` on.
void attend_part(const block_keys& keys, int32_t begin, int32_t end, int32_t from, int32_t lines,
                 int32_t group, workspace* work) {
    const lk_draft_attention_args& args = *keys.args;
    const int32_t dim = args.k_ring.dim, width = padded(dim);
    const bool is_own = begin >= keys.past;
    const block_reader read_keys = key_reader(is_own ? LK_F32 : args.k_ring.type);
    const block_reader read_values = value_reader(is_own ? LK_F32 : args.v_ring.type);
    stored_rows none;
    none.count = 0;
    for (int32_t at = begin; at < end; at += KV_KEYS) {
        const stored_rows rows = rows_from(keys, args.k_ring, args.k, at, end);
        read_keys(rows, none, dim, work->block);
        for (int32_t line = 0; line < lines; line += TILE_ROWS) {
            score_block(lower(lines - line, TILE_ROWS), work->q + (int64_t)line * dim, dim,
                        work->block, rows.count,
                        work->scores + (int64_t)line * LK_KV_PART + at - begin, LK_KV_PART);
        }
    }
    softmax_state part[LINES];
    for (int32_t line = 0; line < lines; line++) {
        float* scores = work->scores + (int64_t)line * LK_KV_PART;
        hide(scores, seen_keys(keys, (from + line) / group), begin, end);
        part[line] = softmax_part(scores, end - begin);
    }
    memset(work->part, 0, (size_t)lines * width * sizeof(float));
    for (int32_t at = begin; at < end; at += KV_KEYS) {
        const stored_rows rows = rows_from(keys, args.v_ring, args.v, at, end);
        read_values(rows, none, dim, work->block);
        for (int32_t line = 0; line < lines; line += TILE_ROWS) {
            value_block(lower(lines - line, TILE_ROWS),
                        work->scores + (int64_t)line * LK_KV_PART + at - begin, LK_KV_PART,
                        work->block, rows.count, work->part + (int64_t)line * width, width);
        }
    }
    for (int32_t line = 0; line < lines; line++) {
        merge_part(&work->state[line], work->sums + (int64_t)line * width, part[line],
                   work->part + (int64_t)line * width, width);
    }
}

void attend_lines(const block_keys& keys, int32_t from, int32_t lines, int32_t group,
                  workspace* work) {
    const lk_draft_attention_args& args = *keys.args;
    const int32_t dim = args.k_ring.dim, width = padded(dim);
    const auto offset = [&](int32_t line, int64_t stride) {
        const int64_t row = keys.segment.first + (from + line) / group;
        return row * stride + (int64_t)(keys.kv_head * group + (from + line) % group) * dim;
    };
    for (int32_t line = 0; line < lines; line++) {
        const float* q = args.q.data + offset(line, args.q.stride);
        for (int32_t i = 0; i < dim; i++) work->q[(int64_t)line * dim + i] = q[i] * args.scale;
        work->state[line] = {-__builtin_inff(), 0.0f};
    }
    memset(work->sums, 0, (size_t)lines * width * sizeof(float));
    const int32_t all = keys.past + keys.fresh;
    for (int32_t at = 0; at < all;) {
        const int32_t end = lower(at + LK_KV_PART, at < keys.past ? keys.past : all);
        attend_part(keys, at, end, from, lines, group, work);
        at = end;
    }
    for (int32_t line = 0; line < lines; line++) {
        write_output(work->sums + (int64_t)line * width, work->state[line].sum,
                     args.out.data + offset(line, args.out.stride), dim);
    }
}

}  // namespace

void draft_attention(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_draft_attention_args& args = *(const lk_draft_attention_args*)record;
    const int32_t kv_heads = args.k_ring.kv_heads, group = args.heads / kv_heads;
    const int64_t tiles = ((int64_t)batch->max_query * group + LINES - 1) / LINES;
    workspace work = take_workspace(worker, args.k_ring.dim);
    const lk_range share = lk_share(batch->segments * kv_heads * tiles, worker);
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int32_t number = (int32_t)(unit / (kv_heads * tiles));
        const int32_t kv_head = (int32_t)(unit / tiles % kv_heads);
        const int32_t from = (int32_t)(unit % tiles) * LINES;
        const block_keys keys = find_keys(args, batch, number, kv_head);
        const int32_t lines = lower(keys.segment.count * group - from, LINES);
        if (lines > 0) attend_lines(keys, from, lines, group, &work);
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
