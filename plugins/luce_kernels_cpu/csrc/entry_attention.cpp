// Attention of DeepSeek V4: over the window's ring, then over compressed entries, with sinks.
//
// A unit of work is some heads of one row; all heads share the keys, which are the values too.
#include <stdlib.h>

#include "entry_rows.h"
#include "hybrid_kernels.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

constexpr int MOST_LINES = 32;  // heads of a unit

struct entry_workspace {
    float* scores;  // [MOST_LINES][LK_KV_PART]
    float* sums;    // [MOST_LINES][padded(dim)]
    float* part;    // likewise
    float* q;       // [MOST_LINES][dim]
    float* block;   // [KV_KEYS][padded(dim)]
    softmax_state state[MOST_LINES];
};

entry_workspace take_entry_workspace(lk_worker* worker, int32_t dim) {
    const int64_t width = padded(dim);
    const int64_t floats = MOST_LINES * (LK_KV_PART + dim + 2 * width) + KV_KEYS * width;
    // What LK_MOST_ENTRY_DIM allows.
    if (worker->scratch_bytes < floats * (int64_t)sizeof(float)) abort();
    entry_workspace work;
    work.block = (float*)worker->scratch;
    work.scores = work.block + KV_KEYS * width;
    work.sums = work.scores + MOST_LINES * LK_KV_PART;
    work.part = work.sums + MOST_LINES * width;
    work.q = work.part + MOST_LINES * width;
    return work;
}

// The keys of one row: `recent` positions of the ring from `first` on, then `entries` of the cache.
struct row_keys {
    const lk_entry_attention_args* args;
    const int32_t* table;
    const float* picks;  // NULL: entry i is the i-th
    int32_t slot, first, recent, entries, seen;
};

row_keys keys_of(const lk_entry_attention_args& args, const lk_batch* batch, int64_t row,
                 int32_t segment) {
    const int32_t position = batch->positions[row];
    const int32_t first = position + 1 > args.window ? position + 1 - args.window : 0;
    row_keys keys = {&args, nullptr, nullptr, batch->slot_ids[segment], first,
                     position + 1 - first, 0, 0};
    if (args.ratio == 0) return keys;
    keys.table = entry_table(batch, segment);
    keys.seen = keys.entries = (position + 1) / args.ratio;
    if (args.picks.data != nullptr) {
        keys.picks = args.picks.data + row * args.picks.stride;
        if (args.picks.width < keys.entries) keys.entries = args.picks.width;
    }
    return keys;
}

// Up to KV_KEYS keys from the at-th on, without `stop`; either all of the ring or all entries.
stored_rows rows_from(const row_keys& keys, bool is_recent, int32_t at, int32_t stop) {
    const lk_entry_attention_args& args = *keys.args;
    const lk_cache& cache = is_recent ? args.ring : args.cache;
    stored_rows found;
    found.count = stop - at < KV_KEYS ? stop - at : KV_KEYS;
    found.bytes = (int32_t)cache_row_bytes(cache.type, cache.dim);
    for (int32_t i = 0; i < found.count; i++) {
        if (is_recent) {
            const int64_t place = (keys.first + at + i) % cache.block_size;
            found.row[i] = cache_row(&cache, (int64_t)keys.slot * cache.block_size + place, 0);
        } else if (keys.picks == nullptr) {
            found.row[i] = entry_row(cache, keys.table, at + i);
        } else {
            // index_topk names entries that the row sees.
            const float pick = keys.picks[at + i];
            const int32_t entry = pick >= 0.0f && pick < (float)keys.seen ? (int32_t)pick : 0;
            found.row[i] = entry_row(cache, keys.table, entry);
        }
    }
    return found;
}

// Keys begin..end - 1 onto the sums of `lines` heads.
void attend_part(const row_keys& keys, bool is_recent, int32_t begin, int32_t end, int32_t lines,
                 entry_workspace* work) {
    const lk_cache& cache = is_recent ? keys.args->ring : keys.args->cache;
    const int32_t dim = cache.dim, width = padded(dim);
    const block_reader read_keys = key_reader(cache.type), read_values = value_reader(cache.type);
    stored_rows none;
    none.count = 0;
    for (int32_t at = begin; at < end; at += KV_KEYS) {
        const stored_rows rows = rows_from(keys, is_recent, at, end);
        read_keys(rows, none, dim, work->block);
        for (int32_t line = 0; line < lines; line += TILE_ROWS) {
            score_block(lines - line < TILE_ROWS ? lines - line : TILE_ROWS,
                        work->q + (int64_t)line * dim, dim, work->block, rows.count,
                        work->scores + (int64_t)line * LK_KV_PART + at - begin, LK_KV_PART);
        }
    }
    softmax_state part[MOST_LINES];
    for (int32_t line = 0; line < lines; line++)
        part[line] = softmax_part(work->scores + (int64_t)line * LK_KV_PART, end - begin);
    memset(work->part, 0, (size_t)lines * width * sizeof(float));
    for (int32_t at = begin; at < end; at += KV_KEYS) {
        const stored_rows rows = rows_from(keys, is_recent, at, end);
        read_values(rows, none, dim, work->block);
        for (int32_t line = 0; line < lines; line += TILE_ROWS) {
            value_block(lines - line < TILE_ROWS ? lines - line : TILE_ROWS,
                        work->scores + (int64_t)line * LK_KV_PART + at - begin, LK_KV_PART,
                        work->block, rows.count, work->part + (int64_t)line * width, width);
        }
    }
    for (int32_t line = 0; line < lines; line++) {
        merge_part(&work->state[line], work->sums + (int64_t)line * width, part[line],
                   work->part + (int64_t)line * width, width);
    }
}

void attend_parts(const row_keys& keys, bool is_recent, int32_t count, int32_t lines,
                  entry_workspace* work) {
    for (int32_t at = 0; at < count; at += LK_KV_PART) {
        const int32_t end = count - at < LK_KV_PART ? count : at + LK_KV_PART;
        attend_part(keys, is_recent, at, end, lines, work);
    }
}

void attend_heads(const row_keys& keys, int64_t row, int32_t head, int32_t lines,
                  entry_workspace* work) {
    const lk_entry_attention_args& args = *keys.args;
    const int32_t dim = args.ring.dim, width = padded(dim);
    const float* q = args.q.data + row * args.q.stride + (int64_t)head * dim;
    for (int32_t i = 0; i < lines * dim; i++) work->q[i] = q[i] * args.scale;
    // The sink is a first part whose value is zero.
    for (int32_t line = 0; line < lines; line++) work->state[line] = {args.sinks[head + line], 1.0f};
    memset(work->sums, 0, (size_t)lines * width * sizeof(float));
    attend_parts(keys, true, keys.recent, lines, work);
    attend_parts(keys, false, keys.entries, lines, work);
    float* out = args.out.data + row * args.out.stride + (int64_t)head * dim;
    for (int32_t line = 0; line < lines; line++) {
        write_output(work->sums + (int64_t)line * width, work->state[line].sum,
                     out + (int64_t)line * dim, dim);
    }
}

}  // namespace

void entry_attention(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_entry_attention_args& args = *(const lk_entry_attention_args*)record;
    entry_workspace work = take_entry_workspace(worker, args.ring.dim);
    // More heads a unit read the keys less often, fewer give every worker some.
    const int64_t wide = (int64_t)batch->rows * ((args.heads + MOST_LINES - 1) / MOST_LINES);
    const int32_t most = wide >= 2 * worker->count ? MOST_LINES : MOST_LINES / 2;
    const int64_t units = (args.heads + most - 1) / most;
    const lk_range share = lk_share(batch->rows * units, worker);
    int32_t segment = 0;
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int64_t row = unit / units;
        while (row >= batch->cu_seqlens[segment + 1]) segment++;
        const int32_t head = (int32_t)(unit % units) * most;
        const int32_t lines = args.heads - head < most ? args.heads - head : most;
        attend_heads(keys_of(args, batch, row, segment), row, head, lines, &work);
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
