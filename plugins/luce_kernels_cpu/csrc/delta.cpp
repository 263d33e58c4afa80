// The gated delta rule over each slot's recurrent state, and its replay.
#include <stdlib.h>
#include <string.h>

#include "delta_state.h"
#include "hybrid_kernels.h"
#include "norm_row.h"
#include "partial_vec.h"
#include "slot_segments.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

constexpr int MOST_VECTORS = 4;                        // of columns, where rows follow each other
constexpr int MOST_ALONE = W == 16 ? 8 : MOST_VECTORS;  // where every segment has one row

// Columns of one head: a unit of work.
struct column_block {
    int32_t head, column, columns;  // columns <= vectors * W
};

// How the state is cut into units: `blocks` of `vectors` vectors of columns for each head.
struct state_cut {
    int32_t vectors, blocks;
};

// The widest blocks that still give every worker some.
state_cut cut_state(const lk_delta_shape& shape, int most, const lk_worker* worker) {
    const int32_t all = (shape.value_dim + W - 1) / W;
    int32_t vectors = most;
    while (vectors > 1 &&
           (vectors > all ||
            (int64_t)shape.value_heads * ((all + vectors - 1) / vectors) < 2 * worker->count)) {
        vectors /= 2;
    }
    return {vectors, (all + vectors - 1) / vectors};
}

column_block block_of(const lk_delta_shape& shape, const state_cut& cut, int64_t unit) {
    const int32_t column = (int32_t)(unit % cut.blocks) * cut.vectors * W;
    const int32_t left = shape.value_dim - column;
    return {(int32_t)(unit / cut.blocks), column, left < cut.vectors * W ? left : cut.vectors * W};
}

int64_t head_offset(const lk_delta_shape& shape, int32_t slot, const column_block& block) {
    return ((int64_t)slot * shape.value_heads + block.head) * shape.key_dim * shape.value_dim +
           block.column;
}

// Vector `v` of `columns` floats; lanes beyond them are 0, or stay.
vf load_part(const float* p, int32_t columns, int v) { return load_some(p + v * W, columns - v * W); }
void store_part(float* p, vf x, int32_t columns, int v) { store_some(p + v * W, x, columns - v * W); }

void scaled(const float* x, float scale, int32_t n, float* out) {
    for (int32_t i = 0; i < n; i += W) {
        store_some(out + i, mul(load_some(x + i, n - i), set1(scale)), n - i);
    }
}

// In double and rounded once: as the op's reference.
float sigmoid(float x) { return (float)(1.0 / (1.0 + __builtin_exp(-(double)x))); }

float decay_of(float x, float rate) {
    const double soft = x > 20.0f ? x : __builtin_log1p(__builtin_exp((double)x));
    return (float)__builtin_exp(rate * soft);
}

// Fills `memory` [2 * key_dim] with a row's key and query for a head.
delta_row take_row(const lk_gated_delta_args& args, int64_t row, int32_t head, float* memory) {
    const lk_delta_shape& shape = args.shape;
    const int32_t dim = shape.key_dim, key_head = head % shape.key_heads;
    const float* query = args.qkv.data + row * args.qkv.stride + (int64_t)key_head * dim;
    const float* key = query + (int64_t)shape.key_heads * dim;
    scaled(key, 1.0f / __builtin_sqrtf(sum_of_squares(key, dim) + args.eps), dim, memory);
    const float length = __builtin_sqrtf(sum_of_squares(query, dim) + args.eps);
    scaled(query, 1.0f / (length * __builtin_sqrtf((float)dim)), dim, memory + dim);
    const float alpha = args.alpha.data[row * args.alpha.stride + head];
    return {memory, memory + dim, decay_of(alpha + args.bias[head], args.rate[head]),
            sigmoid(args.beta.data[row * args.beta.stride + head])};
}

void log_row(const lk_gated_delta_args& args, const column_block& block, int32_t slot, int32_t at,
             const delta_row& row, const vf* delta, int vectors) {
    const lk_delta_shape& shape = args.shape;
    const int64_t place = (int64_t)slot * args.slots.log_rows + at;
    float* deltas = args.delta_log +
                    (place * shape.value_heads + block.head) * shape.value_dim + block.column;
    for (int v = 0; v < vectors; v++) store_part(deltas, delta[v], block.columns, v);
    if (block.column > 0) return;
    args.decay_log[place * shape.value_heads + block.head] = row.decay;
    if (block.head < shape.key_heads) {
        memcpy(args.key_log + (place * shape.key_heads + block.head) * shape.key_dim, row.key,
               (size_t)shape.key_dim * sizeof(float));
    }
}

// Rows of `columns` floats, padded with 0 to whole vectors in the copy.
void copy_in(const float* state, int64_t stride, int32_t key_dim, int32_t columns, int vectors,
             float* copy) {
    for (int32_t i = 0; i < key_dim; i++)
        for (int v = 0; v < vectors; v++)
            store(copy + (i * vectors + v) * W, load_part(state + i * stride, columns, v));
}

void copy_out(const float* copy, int64_t stride, int32_t key_dim, int32_t columns, int vectors,
              float* state) {
    for (int32_t i = 0; i < key_dim; i++)
        for (int v = 0; v < vectors; v++)
            store_part(state + i * stride, load(copy + (i * vectors + v) * W), columns, v);
}

// A segment's rows through the columns of a block. One row works on the state where it lies, more
// on a copy that stays in the core's cache. `ahead`: the state that is needed next, or NULL.
template <int NV>
void run_segment(const lk_gated_delta_args& args, const column_block& block,
                 const lk_slot_segment& segment, const float* ahead, float* scratch) {
    const lk_delta_shape& shape = args.shape;
    const int32_t dim = shape.key_dim, columns = block.columns;
    float* own = args.state + head_offset(shape, segment.slot, block);
    float* rows = scratch + (int64_t)dim * NV * W;
    const bool in_place = segment.count == 1 && columns == NV * W;
    float* state = in_place ? own : scratch;
    const int64_t stride = in_place ? shape.value_dim : NV * W;
    if (!in_place) copy_in(own, shape.value_dim, dim, columns, NV, scratch);

    const int64_t keys = 2 * (int64_t)shape.key_heads * dim;
    const int64_t values = (int64_t)block.head * shape.value_dim + block.column;
    vf read[NV];
    delta_row row = take_row(args, segment.first, block.head, rows);
    read_state<NV>(state, stride, dim, row, read);
    for (int32_t at = 0; at < segment.count; at++) {
        const int64_t number = segment.first + at;
        const float* value = args.qkv.data + number * args.qkv.stride + keys + values;
        vf delta[NV], out[NV];
        for (int v = 0; v < NV; v++)
            delta[v] = mul(set1(row.rate), sub(load_part(value, columns, v), read[v]));
        if (segment.verifies) log_row(args, block, segment.slot, at, row, delta, NV);
        if (at + 1 < segment.count) {
            const delta_row next =
                take_row(args, number + 1, block.head, rows + (at + 1) % 2 * 2 * (int64_t)dim);
            update_and_read<NV>(state, stride, dim, row, delta, next, out, read);
            row = next;
        } else {
            update_state<NV>(state, stride, dim, row, delta, in_place ? ahead : nullptr, out);
        }
        float* to = args.out.data + number * args.out.stride + values;
        for (int v = 0; v < NV; v++) store_part(to, out[v], columns, v);
    }
    if (!in_place && !segment.verifies) {
        copy_out(scratch, shape.value_dim, dim, columns, NV, own);
    }
}

using segment_runner = void (*)(const lk_gated_delta_args&, const column_block&,
                                const lk_slot_segment&, const float*, float*);

segment_runner runner_of(int32_t vectors) {
    switch (vectors) {
        case 1: return run_segment<1>;
        case 2: return run_segment<2>;
        case 4: return run_segment<4>;
        default: return run_segment<8>;
    }
}

// The first `count` logged rows onto a block of columns, row after row.
template <int NV>
void replay_block(const lk_gated_delta_replay_args& args, const column_block& block, int32_t slot,
                  int32_t count) {
    const lk_delta_shape& shape = args.shape;
    const int64_t place = (int64_t)slot * args.slots.log_rows;
    const int64_t keys = (int64_t)shape.key_heads * shape.key_dim;
    const int64_t values = (int64_t)shape.value_heads * shape.value_dim;
    const float* key = args.key_log + place * keys +
                       (int64_t)(block.head % shape.key_heads) * shape.key_dim;
    const float* delta = args.delta_log + place * values +
                         (int64_t)block.head * shape.value_dim + block.column;
    const float* decay = args.decay_log + place * shape.value_heads + block.head;
    float* state = args.state + head_offset(shape, slot, block);
    for (int32_t i = 0; i < shape.key_dim; i++, state += shape.value_dim) {
        vf fresh[NV];
        for (int v = 0; v < NV; v++) fresh[v] = load_part(state, block.columns, v);
        for (int32_t row = 0; row < count; row++) {
            const vf by = set1(decay[(int64_t)row * shape.value_heads]);
            const vf with = set1(key[row * keys + i]);
            for (int v = 0; v < NV; v++)
                fresh[v] = updated(fresh[v], by, with,
                                   load_part(delta + row * values, block.columns, v));
        }
        for (int v = 0; v < NV; v++) store_part(state, fresh[v], block.columns, v);
    }
}

using block_replayer = void (*)(const lk_gated_delta_replay_args&, const column_block&, int32_t,
                                int32_t);

block_replayer replayer_of(int32_t vectors) {
    switch (vectors) {
        case 1: return replay_block<1>;
        case 2: return replay_block<2>;
        default: return replay_block<4>;
    }
}

}  // namespace

void gated_delta(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_gated_delta_args& args = *(const lk_gated_delta_args*)record;
    const lk_delta_shape& shape = args.shape;
    const state_cut cut =
        cut_state(shape, batch->max_query == 1 ? MOST_ALONE : MOST_VECTORS, worker);
    const int64_t floats = (int64_t)shape.key_dim * (cut.vectors * W + 4);
    // What LK_MOST_KEY_DIM allows.
    if (worker->scratch_bytes < floats * (int64_t)sizeof(float)) abort();
    const segment_runner run = runner_of(cut.vectors);
    const lk_range share = lk_share((int64_t)shape.value_heads * cut.blocks, worker);
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const column_block block = block_of(shape, cut, unit);
        for (int32_t number = 0; number < batch->segments; number++) {
            const lk_slot_segment segment = lk_segment_at(batch, number);
            if (segment.count == 0) continue;
            const bool last = number + 1 == batch->segments;
            const float* ahead = nullptr;
            if (!last) {
                ahead = args.state + head_offset(shape, batch->slot_ids[number + 1], block);
            } else if (unit + 1 < share.end) {
                const column_block next = block_of(shape, cut, unit + 1);
                ahead = args.state + head_offset(shape, batch->slot_ids[0], next);
            }
            run(args, block, segment, ahead, (float*)worker->scratch);
        }
    }
}

void gated_delta_replay(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_gated_delta_replay_args& args = *(const lk_gated_delta_replay_args*)record;
    const state_cut cut = cut_state(args.shape, MOST_VECTORS, worker);
    const block_replayer replay = replayer_of(cut.vectors);
    const lk_range share = lk_share((int64_t)args.shape.value_heads * cut.blocks, worker);
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const column_block block = block_of(args.shape, cut, unit);
        for (int32_t number = batch->num_prefill; number < batch->segments; number++) {
            const lk_slot_segment segment = lk_segment_at(batch, number);
            if (segment.verifies && args.accepted[segment.slot] > 0)
                replay(args, block, segment.slot, args.accepted[segment.slot]);
        }
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
