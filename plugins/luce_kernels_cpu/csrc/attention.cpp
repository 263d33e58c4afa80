// Paged grouped-query attention. See attention_units.h for how work is cut, attention_tile.h for
// the order of the arithmetic.
#include <stdlib.h>

#include "attention_units.h"
#include "quantize_row.h"
#include "row_kernels.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

// A worker's buffers, all of whole vectors.
struct workspace {
    float* block;    // keys or values of KV_KEYS positions
    float* q;        // [tile][dim], scaled
    float* scores;   // [tile][LK_KV_PART]
    float* sums;     // [tile][width] of the parts so far
    float* part;     // [tile][width] of a further part
    softmax_state state[MAX_LINES];
    softmax_state part_state[MAX_LINES];
    int32_t keys[MAX_LINES];  // that each line sees
    const attention_unit* following;  // that this worker does next, or NULL
};

int64_t line_floats(int32_t dim) { return dim + LK_KV_PART + 2 * (int64_t)padded(dim); }

int64_t block_floats(int32_t dim) { return (int64_t)KV_KEYS * padded(dim); }

int32_t lines_that_fit(int32_t dim, const lk_worker* worker) {
    const int64_t floats = worker->scratch_bytes / (int64_t)sizeof(float) - block_floats(dim);
    const int64_t lines = floats / line_floats(dim);
    if (lines < 1) abort();  // LK_ATTENTION_SCRATCH was not kept
    return (int32_t)(lines > MAX_LINES ? MAX_LINES : lines);
}

void lay_out(workspace* work, const attention_plan& plan, const lk_worker* worker) {
    work->block = (float*)worker->scratch;
    work->scores = work->block + block_floats(plan.dim);
    work->sums = work->scores + (int64_t)plan.tile * LK_KV_PART;
    work->part = work->sums + (int64_t)plan.tile * plan.width;
    work->q = work->part + (int64_t)plan.tile * plan.width;
}

int32_t limited(int32_t x, int32_t most) { return x < 0 ? 0 : x < most ? x : most; }

// Tiles of one size: a last one of few rows would wait for its chains.
int32_t tile_rows(int32_t lines) {
    const int32_t tiles = (lines + TILE_ROWS - 1) / TILE_ROWS;
    return (lines + tiles - 1) / tiles;
}

// Stored rows of a head at the positions from `position` on, before `end`.
void find_rows(const lk_cache& cache, const int32_t* table, int32_t kv_head, int32_t position,
               int32_t end, stored_rows* found) {
    found->bytes = (int32_t)cache_row_bytes(cache.type, cache.dim);
    found->count = limited(end - position, KV_KEYS);
    const int64_t step = (int64_t)cache.kv_heads * found->bytes;
    int32_t index = position / cache.block_size, offset = position % cache.block_size;
    for (int32_t i = 0; i < found->count; index++, offset = 0) {
        const uint8_t* row =
            cache_row(&cache, (int64_t)table[index] * cache.block_size + offset, kv_head);
        const int32_t stop = limited(i + cache.block_size - offset, found->count);
        for (int32_t first = i; first < stop; first += RUN_KEYS, row += RUN_KEYS * step)
            for (int32_t j = 0; j < RUN_KEYS; j++) found->row[first + j] = row + j * step;
        i = stop;
    }
}

const int32_t* segment_table(const attention_plan& plan, int32_t segment) {
    return plan.batch->block_tables + (int64_t)segment * plan.batch->table_stride;
}

// One of `heads` heads of a block; the next block's first head is read after the last.
void read_head(block_reader read, const stored_rows& block, const stored_rows& next, int32_t head,
               int32_t heads, int32_t dim, float* floats) {
    stored_rows here, after;
    read(rows_of_head(block, head, &here),
         head + 1 < heads ? rows_of_head(block, head + 1, &after) : next, dim, floats);
}

// Scores of all lines for the keys of a part.
void score_part(const attention_plan& plan, const attention_unit& unit, int32_t begin, int32_t end,
                workspace* work) {
    const lk_cache& cache = plan.args->k_cache;
    const lk_cache& following = plan.args->v_cache;
    const int32_t* table = segment_table(plan, unit.segment);
    const block_reader read = key_reader(cache.type);
    const few_keys few = find_few_keys(cache.type, plan.dim);
    const bool turns = unit.lines <= FEW_LINES && few.turn != nullptr;
    const int32_t tile = tile_rows(unit.lines);
    stored_rows block, next;
    find_rows(cache, table, unit.kv_head, begin, end, &block);
    for (int32_t at = begin; at < end; at += KV_KEYS, block = next) {
        const bool last = at + KV_KEYS >= end;
        find_rows(last ? following : cache, table, unit.kv_head, last ? begin : at + KV_KEYS, end,
                  &next);
        line_fetcher fetcher(next, unit.heads);
        for (int32_t head = 0; head < unit.heads; head++) {
            if (turns) {
                fetcher.spread(unit.heads - head, key_work(block.count, plan.dim));
                few.turn(block, head, plan.dim, &fetcher, (uint8_t*)work->block);
            } else {
                read_head(read, block, next, head, unit.heads, plan.dim, work->block);
            }
            for (int32_t line = 0; line < unit.lines; line += tile) {
                const int32_t lines = limited(unit.lines - line, tile);
                const int32_t seen = limited(work->keys[line + lines - 1] - at, block.count);
                const int64_t first = head * unit.lines + line;
                const float* q = work->q + first * plan.dim;
                float* scores = work->scores + first * LK_KV_PART + at - begin;
                if (turns) {
                    few.score(lines, q, plan.dim, (const uint8_t*)work->block, seen, &fetcher,
                              scores, LK_KV_PART);
                } else {
                    score_block(lines, q, plan.dim, work->block, seen, scores, LK_KV_PART);
                }
            }
        }
    }
}

// The rows that are read first after a part, and how many heads' of them: of its next part, or of
// the following unit.
int32_t find_next_rows(const attention_plan& plan, const attention_unit& unit, int32_t end,
                       bool goes_on, const workspace* work, stored_rows* found) {
    const attention_unit* next = goes_on ? &unit : work->following;
    found->count = 0;
    if (next == nullptr) return 0;
    find_rows(plan.args->k_cache, segment_table(plan, next->segment), next->kv_head,
              goes_on ? end : next->part * LK_KV_PART,
              tile_keys(plan, next->segment, next->line, next->lines), found);
    return next->heads;
}

// Weighted values of a part onto the sums of all lines. `goes_on`: its next part follows.
void value_part(const attention_plan& plan, const attention_unit& unit, int32_t begin, int32_t end,
                bool goes_on, workspace* work, float* sums) {
    const lk_cache& cache = plan.args->v_cache;
    const int32_t* table = segment_table(plan, unit.segment);
    const block_reader read = value_reader(cache.type);
    const few_values few =
        unit.lines <= FEW_LINES ? find_few_values(cache.type, plan.dim) : nullptr;
    const int32_t tile = tile_rows(unit.lines);
    stored_rows block, next;
    find_rows(cache, table, unit.kv_head, begin, end, &block);
    for (int32_t at = begin; at < end; at += KV_KEYS, block = next) {
        int32_t next_heads = unit.heads;
        if (at + KV_KEYS < end) {
            find_rows(cache, table, unit.kv_head, at + KV_KEYS, end, &next);
        } else {
            next_heads = find_next_rows(plan, unit, end, goes_on, work, &next);
        }
        line_fetcher fetcher(next, next_heads);
        for (int32_t head = 0; head < unit.heads; head++) {
            const auto weigh = [&](int32_t lines, const float* weights, int32_t from, int32_t keys,
                                   float* out) {
                if (few != nullptr) {
                    few(lines, weights, LK_KV_PART, block, head, from, keys, &fetcher, out,
                        plan.width);
                } else {
                    value_block(lines, weights, LK_KV_PART,
                                work->block + (int64_t)from * plan.width, keys, out, plan.width);
                }
            };
            if (few != nullptr) {
                fetcher.spread(unit.heads - head, value_work(block.count, plan.width));
            } else {
                read_head(read, block, next, head, unit.heads, plan.dim, work->block);
            }
            for (int32_t line = 0; line < unit.lines; line += tile) {
                const int32_t lines = limited(unit.lines - line, tile);
                const int64_t first = head * unit.lines + line;
                const float* weights = work->scores + first * LK_KV_PART + at - begin;
                float* out = sums + first * plan.width;
                const int32_t shared = limited(work->keys[line] - at, block.count);
                if (shared) weigh(lines, weights, 0, shared, out);
                // A key that a line does not see may hold NaN: it must not be weighed with 0.
                for (int32_t i = 1; i < lines; i++) {
                    const int32_t seen = limited(work->keys[line + i] - at, block.count);
                    if (seen == shared) continue;
                    weigh(1, weights + (int64_t)i * LK_KV_PART + shared, shared, seen - shared,
                          out + (int64_t)i * plan.width);
                }
            }
        }
    }
}

// One part for all lines: sums [lines][width], and states of the lines that see some of it.
void attend_part(const attention_plan& plan, const attention_unit& unit, int32_t part, bool goes_on,
                 workspace* work, float* sums, softmax_state* states) {
    const int32_t begin = part * LK_KV_PART;
    const int32_t end = begin + limited(work->keys[unit.lines - 1] - begin, LK_KV_PART);
    score_part(plan, unit, begin, end, work);
    for (int32_t line = 0; line < unit.heads * unit.lines; line++) {
        const int32_t seen = limited(work->keys[line % unit.lines] - begin, LK_KV_PART);
        if (seen) states[line] = softmax_part(work->scores + (int64_t)line * LK_KV_PART, seen);
        for (int32_t d = 0; d < plan.width; d += W)
            store(sums + (int64_t)line * plan.width + d, zero());
    }
    value_part(plan, unit, begin, end, goes_on, work, sums);
}

// Of the heads of a row that share a KV head, and of the rows of a segment, side by side.
int32_t line_number(const attention_unit& unit, int32_t line) {
    return unit.line + line % unit.lines;
}

int64_t line_row(const attention_plan& plan, const attention_unit& unit, int32_t line) {
    return plan.batch->cu_seqlens[unit.segment] + line_number(unit, line) / plan.group;
}

// Where a line lies in rows `stride` apart.
int64_t line_offset(const attention_plan& plan, const attention_unit& unit, int32_t line,
                    int64_t stride) {
    const int32_t kv_head = unit.kv_head + line / unit.lines;
    const int32_t head = kv_head * plan.group + line_number(unit, line) % plan.group;
    return line_row(plan, unit, line) * stride + (int64_t)head * plan.dim;
}

void take_queries(const attention_plan& plan, const attention_unit& unit, workspace* work) {
    const lk_rows& q = plan.args->q;
    const vf scale = set1(plan.args->scale);
    for (int32_t line = 0; line < unit.lines; line++)
        work->keys[line] = line_keys(plan, unit.segment, unit.line + line);
    for (int32_t line = 0; line < unit.heads * unit.lines; line++) {
        const float* from = q.data + line_offset(plan, unit, line, q.stride);
        float* to = work->q + (int64_t)line * plan.dim;
        int32_t d = 0;
        for (; d + W <= plan.dim; d += W) store(to + d, mul(load(from + d), scale));
        const int32_t rest = plan.dim - d;
        if (rest) store_first(to + d, mul(load_first(from + d, rest), scale), rest);
    }
}

// A line's result, and its int8 form.
void finish_line(const attention_plan& plan, const attention_unit& unit, int32_t line,
                 const float* sums, float sum) {
    const lk_rows& out = plan.args->out;
    const lk_quantized& quantized = plan.args->quantized;
    float* to = out.data + line_offset(plan, unit, line, out.stride);
    write_output(sums, sum, to, plan.dim);
    if (quantized.q == nullptr) return;
    quantize_values(quantized, to, line_row(plan, unit, line), line_offset(plan, unit, line, 0),
                    plan.dim);
}

void run_unit(const attention_plan& plan, const attention_unit& unit, workspace* work) {
    const int32_t lines = unit.heads * unit.lines;
    take_queries(plan, unit, work);
    if (unit.partial >= 0) {
        attend_part(plan, unit, unit.part, false, work, work->sums, work->state);
        for (int32_t line = 0; line < lines; line++) {
            const int64_t place = unit.partial + line / unit.lines * unit.partial_step;
            float* to =
                plan.args->partials + (place + line % unit.lines) * partial_floats(plan);
            memcpy(to, work->sums + (int64_t)line * plan.width, sizeof(float) * plan.width);
            to[plan.width] = work->state[line].max;
            to[plan.width + 1] = work->state[line].sum;
        }
        return;
    }
    attend_part(plan, unit, 0, unit.parts > 1, work, work->sums, work->state);
    for (int32_t part = 1; part < unit.parts; part++) {
        attend_part(plan, unit, part, part + 1 < unit.parts, work, work->part, work->part_state);
        for (int32_t line = 0; line < lines; line++) {
            if (part >= part_count(work->keys[line % unit.lines])) continue;
            merge_part(&work->state[line], work->sums + (int64_t)line * plan.width,
                       work->part_state[line], work->part + (int64_t)line * plan.width,
                       plan.width);
        }
    }
    for (int32_t line = 0; line < lines; line++) {
        finish_line(plan, unit, line, work->sums + (int64_t)line * plan.width,
                    work->state[line].sum);
    }
}

// Combines the parts of the lines of split segments.
void combine(const attention_plan& plan, lk_worker* worker, float* sums) {
    const int32_t kv_heads = plan.args->k_cache.kv_heads;
    const int64_t floats = partial_floats(plan);
    int64_t all = 0;
    for (int32_t segment = 0; segment < plan.batch->segments; segment++) {
        if (segment_partials(plan, segment))
            all += (int64_t)segment_rows(plan.batch, segment) * plan.group * kv_heads;
    }
    const lk_range share = lk_share(all, worker);
    int64_t number = 0, partial = 0;
    for (int32_t segment = 0; segment < plan.batch->segments; segment++) {
        const int64_t partials = segment_partials(plan, segment);
        if (partials == 0) continue;
        const int32_t lines = segment_rows(plan.batch, segment) * plan.group;
        const int32_t parts = part_count(tile_keys(plan, segment, 0, lines));
        for (int32_t i = 0; i < lines * kv_heads; i++, number++) {
            if (number < share.begin || number >= share.end) continue;
            const attention_unit unit = {segment, i / lines, 1, i % lines, 1, 0, parts, 0, 0};
            const int64_t first = partial + (int64_t)unit.kv_head * parts * lines + unit.line;
            const int32_t own = part_count(line_keys(plan, segment, unit.line));
            softmax_state state = {0, 0};
            for (int32_t part = 0; part < own; part++) {
                const float* from = plan.args->partials + (first + (int64_t)part * lines) * floats;
                const softmax_state next = {from[plan.width], from[plan.width + 1]};
                if (part == 0) {
                    state = next;
                    memcpy(sums, from, sizeof(float) * plan.width);
                } else {
                    merge_part(&state, sums, next, from, plan.width);
                }
            }
            finish_line(plan, unit, 0, sums, state.sum);
        }
        partial += partials;
    }
}

}  // namespace

void attention(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_attention_args* args = (const lk_attention_args*)record;
    const int32_t dim = args->k_cache.dim;
    attention_plan plan = {args, batch, dim, padded(dim), args->heads / args->k_cache.kv_heads,
                           lines_that_fit(dim, worker), 0, false};
    // One worker gains the order of the memory only, which many lines gain nothing from.
    plan.split_lines = worker->count > 1 || plan.tile < FEW_LINES ? plan.tile : FEW_LINES;
    workspace work;
    lay_out(&work, plan, worker);

    if (args->partials != nullptr) {
        int64_t partials = 0;
        for (int32_t segment = 0; segment < batch->segments; segment++)
            partials += segment_partials(plan, segment);
        const int64_t bytes = partials * partial_floats(plan) * (int64_t)sizeof(float);
        plan.split = partials > 0 && bytes <= args->partials_bytes;
    }

    int64_t total = 0;
    each_unit(plan, [&](const attention_unit& unit) { total += unit_cost(plan, unit); });
    int64_t before = 0;
    attention_unit mine = {}, next = {};  // found last, not yet done; no lines: none
    const auto run_mine = [&] {
        work.following = next.lines ? &next : nullptr;
        if (mine.lines) run_unit(plan, mine, &work);
        mine = next;
    };
    each_unit(plan, [&](const attention_unit& unit) {
        const int64_t cost = unit_cost(plan, unit);
        // The worker in whose share of the total the unit's middle lies.
        const int64_t owner = (2 * before + cost) * worker->count / (2 * total);
        before += cost;
        if (owner != worker->index || (next.lines && join_heads(plan, &next, unit))) return;
        run_mine();
        next = unit;
    });
    run_mine();
    next = {};
    run_mine();

    if (plan.split) {
        lk_barrier(worker);
        combine(plan, worker, work.sums);
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
