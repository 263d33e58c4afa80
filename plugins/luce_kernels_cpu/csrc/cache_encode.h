// One head's values as the cache stores them, rounded as luce_core.ops.kv_layout does: equal bytes.
// The formulas of q8_0 and q4_0 are ggml's.
#ifndef LUCE_CACHE_ENCODE_H
#define LUCE_CACHE_ENCODE_H

#include "cache_rows.h"

namespace lk {
namespace LK_ISA_NS {

constexpr int PIECES = QUANT_VALUES / W;  // vectors of a quant block

// Round to nearest, halves to even; every NaN becomes 0x7fc0, as in torch.
static inline vi rounded_to_bf16(vf x) {
    const vi raw = bits(x);
    const vi odd = andi(shift_right(raw, 16), seti(1));
    const vi rounded = shift_right(addi(raw, addi(odd, seti(0x7fff))), 16);
    return select(is_nan(x), seti(0x7fc0), rounded);
}

static inline void encode_plain_vector(int32_t type, vf x, uint8_t* to) {
    if (type == LK_F32) {
        store((float*)to, x);
    } else if (type == LK_F16) {
        to_half(to, x);
    } else {
        store_shorts(to, rounded_to_bf16(x));
    }
}

static inline void encode_plain(int32_t type, const float* x, int dim, uint8_t* to) {
    const int size = type == LK_F32 ? 4 : 2;
    int i = 0;
    for (; i + W <= dim; i += W) encode_plain_vector(type, load(x + i), to + i * size);
    if (i < dim) {
        uint8_t copy[W * 4];
        encode_plain_vector(type, load_first(x + i, dim - i), copy);
        memcpy(to + i * size, copy, (size_t)(dim - i) * size);
    }
}

// The largest size of a block's values; NaN if one is NaN.
static inline float largest_size(const vf* x) {
    vf top = zero();
    vm strange = is_nan(top);
    for (int v = 0; v < PIECES; v++) {
        top = max(top, abs(x[v]));
        strange = either(strange, is_nan(x[v]));
    }
    return any(strange) ? __builtin_nanf("") : max_lanes(top);
}

static inline float inverse_or_zero(float scale) { return scale == 0.0f ? 0.0f : 1.0f / scale; }

static inline void load_block(const float* x, vf* block) {
    for (int v = 0; v < PIECES; v++) block[v] = load(x + v * W);
}

// d = max|x| / 127; q = x / d to the nearest, halves away from zero.
static inline void encode_q8_0(const float* x, uint8_t* to) {
    vf block[PIECES];
    load_block(x, block);
    const float scale = largest_size(block) / 127.0f;
    float_to_half(to, scale);
    const vf factor = set1(inverse_or_zero(scale));
    for (int v = 0; v < PIECES; v++) {
        const vf scaled = mul(block[v], factor), size = abs(scaled), down = floor(size);
        const vf up = floor(mul(set1(2.0f), sub(size, down)));
        const vi sign = andi(bits(scaled), seti(INT32_MIN));
        const vf rounded = bits(ori(bits(add(down, up)), sign));
        store_bytes(to + 2 + v * W, to_int(rounded));
    }
}

// d = (the x of largest size, the first of equals) / -8; q = x / d + 8.5 cut to 0..15.
static inline void encode_q4_0(const float* x, uint8_t* to) {
    vf block[PIECES];
    load_block(x, block);
    const float size = largest_size(block);
    float extreme = size;
    for (int i = 0; i < QUANT_VALUES; i++) {
        if (__builtin_fabsf(x[i]) == size) {
            extreme = x[i];
            break;
        }
    }
    const float scale = extreme / -8.0f;
    float_to_half(to, scale);
    const vf factor = set1(inverse_or_zero(scale));
    vi q[PIECES];
    for (int v = 0; v < PIECES; v++) {
        const vf moved = trunc(add(mul(block[v], factor), set1(8.5f)));
        q[v] = to_int(min(set1(15.0f), max(zero(), moved)));
    }
    for (int v = 0; v < PIECES / 2; v++)
        store_bytes(to + 2 + v * W, ori(q[v], shift_left(q[v + PIECES / 2], 4)));
}

static inline void encode_row(const lk_cache& cache, const float* x, uint8_t* to) {
    if (cache.type == LK_Q8_0) {
        for (int i = 0; i < cache.dim; i += QUANT_VALUES)
            encode_q8_0(x + i, to + i / QUANT_VALUES * Q8_BYTES);
    } else if (cache.type == LK_Q4_0) {
        for (int i = 0; i < cache.dim; i += QUANT_VALUES)
            encode_q4_0(x + i, to + i / QUANT_VALUES * Q4_BYTES);
    } else {
        encode_plain(cache.type, x, cache.dim, to);
    }
}

static inline void encode_head(const lk_cache& cache, const lk_rows& x, const lk_batch* batch,
                               int64_t row, int32_t head) {
    encode_row(cache, x.data + row * x.stride + (int64_t)head * cache.dim,
               cache_row(&cache, batch->kv_rows[row], head));
}

// Visits a worker's heads of the rows that a step stores: by physical row and head, so that
// padding, which shares one row, has one writer.
template <typename Visit>
static inline void each_cache_head(const lk_cache& cache, const lk_batch* batch,
                                   const lk_worker* worker, Visit visit) {
    for (int64_t row = 0; row < batch->rows; row++) {
        const int32_t turn = batch->kv_rows[row] % worker->count;
        const int32_t first = (worker->index - turn + worker->count) % worker->count;
        for (int32_t head = first; head < cache.kv_heads; head += worker->count) visit(row, head);
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
