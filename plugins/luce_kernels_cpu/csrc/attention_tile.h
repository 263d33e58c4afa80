// The inner loops of attention: a few query rows at a time against a block of keys or values.
//
// A query row's score for a key is one chain of fma over the head's dims, its output in a dim one
// chain of fma over the keys, both in ascending order. How many rows and vectors a tile holds
// changes neither chain, so a row has the same bits in a tile of six and alone.
#ifndef LUCE_ATTENTION_TILE_H
#define LUCE_ATTENTION_TILE_H

#include "attention_block.h"
#include "exp.h"

namespace lk {
namespace LK_ISA_NS {

constexpr int TILE_ROWS = 6;

// Keeps compilers from loading x again for each use.
static inline void in_register(vf& x) { __asm__("" : "+v"(x)); }

// scores[r][key] = sum over d of q[r][d] * columns[d][key], NV vectors of keys.
template <int MR, int NV>
static void score_tile(const float* q, int dim, const float* columns, float* scores,
                       int64_t scores_stride) {
    vf sum[MR][NV];
    for (int r = 0; r < MR; r++)
        for (int v = 0; v < NV; v++) sum[r][v] = zero();
    for (int d = 0; d < dim; d++) {
        vf key[NV];
        for (int v = 0; v < NV; v++) {
            key[v] = load(columns + (int64_t)d * TILE_WIDTH + v * W);
            in_register(key[v]);
        }
        for (int r = 0; r < MR; r++) {
            const vf x = set1(q[(int64_t)r * dim + d]);
            for (int v = 0; v < NV; v++) sum[r][v] = fma(x, key[v], sum[r][v]);
        }
    }
    for (int r = 0; r < MR; r++)
        for (int v = 0; v < NV; v++) store(scores + r * scores_stride + v * W, sum[r][v]);
}

// sums[r][d] += weights[r][key] * values[key][d] for keys in order, NV vectors of dims.
template <int MR, int NV>
static void value_tile(const float* weights, int64_t weights_stride, const float* values, int keys,
                       float* sums, int width) {
    vf sum[MR][NV];
    for (int r = 0; r < MR; r++)
        for (int v = 0; v < NV; v++) sum[r][v] = load(sums + (int64_t)r * width + v * W);
    for (int key = 0; key < keys; key++) {
        vf value[NV];
        for (int v = 0; v < NV; v++) {
            value[v] = load(values + (int64_t)key * width + v * W);
            in_register(value[v]);
        }
        for (int r = 0; r < MR; r++) {
            const vf x = set1(weights[r * weights_stride + key]);
            for (int v = 0; v < NV; v++) sum[r][v] = fma(x, value[v], sum[r][v]);
        }
    }
    for (int r = 0; r < MR; r++)
        for (int v = 0; v < NV; v++) store(sums + (int64_t)r * width + v * W, sum[r][v]);
}

template <int MR>
static void score_rows(const float* q, int dim, const float* columns, int keys, float* scores,
                       int64_t scores_stride) {
    for (int key = 0; key < keys; key += TILE_WIDTH) {
        const float* from = columns + (int64_t)key * dim;
        float* to = scores + key;
        switch (keys - key >= TILE_WIDTH ? TILE_VECTORS : (keys - key + W - 1) / W) {
            case 1: score_tile<MR, 1>(q, dim, from, to, scores_stride); break;
            case 2: score_tile<MR, 2>(q, dim, from, to, scores_stride); break;
#if defined(__AVX512F__)
            case 3: score_tile<MR, 3>(q, dim, from, to, scores_stride); break;
            default: score_tile<MR, 4>(q, dim, from, to, scores_stride); break;
#endif
        }
    }
}

template <int MR>
static void value_rows(const float* weights, int64_t weights_stride, const float* values, int keys,
                       float* sums, int width) {
    for (int at = 0; at < width; at += TILE_WIDTH) {
        const float* from = values + at;
        float* to = sums + at;
        switch (width - at >= TILE_WIDTH ? TILE_VECTORS : (width - at) / W) {
            case 1: value_tile<MR, 1>(weights, weights_stride, from, keys, to, width); break;
            case 2: value_tile<MR, 2>(weights, weights_stride, from, keys, to, width); break;
#if defined(__AVX512F__)
            case 3: value_tile<MR, 3>(weights, weights_stride, from, keys, to, width); break;
            default: value_tile<MR, 4>(weights, weights_stride, from, keys, to, width); break;
#endif
        }
    }
}

// Scores of `rows` <= TILE_ROWS query rows [rows][dim] against the first `keys` of a block.
// Whole vectors are written: up to W - 1 scores beyond `keys`.
static void score_block(int rows, const float* q, int dim, const float* columns, int keys,
                        float* scores, int64_t scores_stride) {
    switch (rows) {
        case 1: score_rows<1>(q, dim, columns, keys, scores, scores_stride); break;
        case 2: score_rows<2>(q, dim, columns, keys, scores, scores_stride); break;
        case 3: score_rows<3>(q, dim, columns, keys, scores, scores_stride); break;
        case 4: score_rows<4>(q, dim, columns, keys, scores, scores_stride); break;
        case 5: score_rows<5>(q, dim, columns, keys, scores, scores_stride); break;
        default: score_rows<6>(q, dim, columns, keys, scores, scores_stride); break;
    }
}

// Weighted values of `keys` keys onto the sums [rows][width] of `rows` <= TILE_ROWS rows.
[[maybe_unused]] static void value_block(int rows, const float* weights, int64_t weights_stride,
                        const float* values, int keys, float* sums, int width) {
    switch (rows) {
        case 1: value_rows<1>(weights, weights_stride, values, keys, sums, width); break;
        case 2: value_rows<2>(weights, weights_stride, values, keys, sums, width); break;
        case 3: value_rows<3>(weights, weights_stride, values, keys, sums, width); break;
        case 4: value_rows<4>(weights, weights_stride, values, keys, sums, width); break;
        case 5: value_rows<5>(weights, weights_stride, values, keys, sums, width); break;
        default: value_rows<6>(weights, weights_stride, values, keys, sums, width); break;
    }
}

struct softmax_state {
    float max, sum;
};

// Scores of the first `keys` keys of a part -> their weights e^(score - max), in place.
static inline softmax_state softmax_part(float* scores, int keys) {
    const vf minus_infinity = set1(-__builtin_inff());
    const int whole = keys / W * W, rest = keys - whole;
    vf top = minus_infinity;
    for (int i = 0; i < whole; i += W) top = max(top, load(scores + i));
    if (rest) top = max(top, select(first(rest), load(scores + whole), minus_infinity));
    const float largest = max_lanes(top);
    const vf shift = set1(largest == -__builtin_inff() ? 0.0f : largest);
    vf sum = zero();
    for (int i = 0; i < whole; i += W) {
        const vf weight = exp(sub(load(scores + i), shift));
        store(scores + i, weight);
        sum = add(sum, weight);
    }
    if (rest) {
        const vf weight = exp(sub(load(scores + whole), shift));
        const vf kept = select(first(rest), weight, zero());
        store(scores + whole, kept);
        sum = add(sum, kept);
    }
    return {largest, sum_lanes(sum)};
}

// A further part (of larger positions) onto the parts before it: sums [width].
static inline void merge_part(softmax_state* state, float* sums, softmax_state part,
                              const float* part_sums, int width) {
    const float largest = state->max > part.max ? state->max : part.max;
    const float shift = largest == -__builtin_inff() ? 0.0f : largest;
    const vf old_scale = exp(set1(state->max - shift)), new_scale = exp(set1(part.max - shift));
    state->sum = state->sum * first_lane(old_scale) + part.sum * first_lane(new_scale);
    state->max = largest;
    for (int at = 0; at < width; at += W)
        store(sums + at, fma(load(part_sums + at), new_scale, mul(load(sums + at), old_scale)));
}

// out[d] = sums[d] / sum
static inline void write_output(const float* sums, float sum, float* out, int dim) {
    int at = 0;
    for (; at + W <= dim; at += W) store(out + at, div(load(sums + at), set1(sum)));
    if (at < dim) store_first(out + at, div(load(sums + at), set1(sum)), dim - at);
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
