// The units of work of one attention call, in one fixed order that every worker computes alike.
//
// A segment's query rows, times the heads that share a KV head, are `lines`: row-major, heads
// inside. A unit is a tile of lines of one KV head over one part of the keys, or over all parts;
// neighbouring heads join where their lines fit one tile, so that memory is read in order.
#ifndef LUCE_ATTENTION_UNITS_H
#define LUCE_ATTENTION_UNITS_H

#include "attention_few.h"

namespace lk {
namespace LK_ISA_NS {

// Lines of a tile: enough to spread the cost of reading a block of keys.
constexpr int MAX_LINES = 96;

struct attention_unit {
    int32_t segment;
    int32_t kv_head, heads;  // first and count
    int32_t line, lines;     // first and count, of each head
    int32_t part, parts;     // first and count
    int64_t partial;         // where its first line's partial results are, or -1: write the output
    int64_t partial_step;    // from a head to the next
};

// What a call fixes for all its units.
struct attention_plan {
    const lk_attention_args* args;
    const lk_batch* batch;
    int32_t dim, width;      // of a head; padded to whole vectors
    int32_t group;           // heads per KV head
    int32_t tile;            // most lines of a unit
    int32_t split_lines;     // most lines of a segment that is cut into parts
    bool split;              // such segments are, with partial results
};

static inline int32_t segment_rows(const lk_batch* batch, int32_t segment) {
    return batch->cu_seqlens[segment + 1] - batch->cu_seqlens[segment];
}

// Keys that a line sees: those up to its own position, which is context + row (the border checks
// the context against the block table).
static inline int32_t line_keys(const attention_plan& plan, int32_t segment, int32_t line) {
    return plan.batch->context_lens[segment] + line / plan.group + 1;
}

// Keys that some of the lines see.
static inline int32_t tile_keys(const attention_plan& plan, int32_t segment, int32_t line,
                                int32_t lines) {
    return line_keys(plan, segment, line + lines - 1);
}

static inline int32_t part_count(int32_t keys) { return (keys + LK_KV_PART - 1) / LK_KV_PART; }

// A line's partial results: its sums, then largest score and sum of weights.
static inline int64_t partial_floats(const attention_plan& plan) { return plan.width + 2; }

// Partial results that a segment needs if it is cut into parts: [kv head][part][line]; 0 if it is
// not cut, being one part or too long.
static inline int64_t segment_partials(const attention_plan& plan, int32_t segment) {
    const int32_t lines = segment_rows(plan.batch, segment) * plan.group;
    if (lines == 0 || lines > plan.split_lines) return 0;
    const int32_t parts = part_count(tile_keys(plan, segment, 0, lines));
    return parts == 1 ? 0 : (int64_t)lines * parts * plan.args->k_cache.kv_heads;
}

// Reading and converting a key costs about as much as attending to it from this many lines.
constexpr int64_t READ_COST = 6;

static inline int64_t unit_cost(const attention_plan& plan, const attention_unit& unit) {
    int64_t keys = tile_keys(plan, unit.segment, unit.line, unit.lines) -
                   (int64_t)unit.part * LK_KV_PART;
    if (unit.parts == 1 && keys > LK_KV_PART) keys = LK_KV_PART;
    return keys * (unit.lines + READ_COST);
}

// Adds the unit that follows to one that is the same but for its heads; false if it is not.
static inline bool join_heads(const attention_plan& plan, attention_unit* unit,
                              const attention_unit& next) {
    if (unit->segment != next.segment || unit->kv_head + unit->heads != next.kv_head ||
        unit->line != next.line || unit->lines != next.lines || unit->part != next.part ||
        unit->parts != next.parts || (unit->heads + next.heads) * unit->lines > plan.tile) {
        return false;
    }
    unit->heads += next.heads;
    return true;
}

// Units of a segment that is cut into parts go by part, then head: the rows of a position lie
// side by side, so that memory is read in order.
template <typename Visit>
static inline void each_unit(const attention_plan& plan, Visit visit) {
    const int32_t kv_heads = plan.args->k_cache.kv_heads;
    int64_t partial = 0;
    for (int32_t segment = 0; segment < plan.batch->segments; segment++) {
        const int32_t lines = segment_rows(plan.batch, segment) * plan.group;
        const int64_t partials = plan.split ? segment_partials(plan, segment) : 0;
        const int32_t all = lines ? part_count(tile_keys(plan, segment, 0, lines)) : 0;
        for (int32_t part = 0; partials && part < all; part++) {
            for (int32_t kv_head = 0; kv_head < kv_heads; kv_head++) {
                const int64_t at = partial + ((int64_t)kv_head * all + part) * lines;
                visit(attention_unit{segment, kv_head, 1, 0, lines, part, 1, at,
                                     (int64_t)all * lines});
            }
        }
        for (int32_t kv_head = 0; partials == 0 && kv_head < kv_heads; kv_head++) {
            for (int32_t line = 0; line < lines; line += plan.tile) {
                const int32_t count = lines - line < plan.tile ? lines - line : plan.tile;
                const int32_t parts = part_count(tile_keys(plan, segment, line, count));
                visit(attention_unit{segment, kv_head, 1, line, count, 0, parts, -1, 0});
            }
        }
        partial += partials;
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
