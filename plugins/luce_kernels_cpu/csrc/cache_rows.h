// Rows of the KV cache: one head's values as luce_core.ops.kv_layout stores them. f32, f16, bf16
// are plain; q8_0 is blocks of 32 values {f16 d; int8 q[32]}, value d * q; q4_0 is
// {f16 d; uint8 q[16]}, where byte j holds values j (low half) and j + 16, value d * (q - 8).
#ifndef LUCE_CACHE_ROWS_H
#define LUCE_CACHE_ROWS_H

#include <string.h>

#include "luce_kernels.h"
#include "vec.h"

namespace lk {
namespace LK_ISA_NS {

constexpr int Q8_BYTES = 34, Q4_BYTES = 18, QUANT_VALUES = 32;

static inline int64_t cache_row_bytes(int32_t type, int64_t dim) {
    switch (type) {
        case LK_F32: return dim * 4;
        case LK_Q8_0: return dim / QUANT_VALUES * Q8_BYTES;
        case LK_Q4_0: return dim / QUANT_VALUES * Q4_BYTES;
        default: return dim * 2;
    }
}

// The stored row of a head at a physical row of the cache.
static inline uint8_t* cache_row(const lk_cache* cache, int64_t row, int32_t head) {
    return cache->data +
           (row * cache->kv_heads + head) * cache_row_bytes(cache->type, cache->dim);
}

static inline float half_to_float(const uint8_t* p) {
    uint16_t half;
    memcpy(&half, p, 2);
    return _cvtsh_ss(half);
}

static inline void float_to_half(uint8_t* p, float x) {
    const uint16_t half = _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT | 8);
    memcpy(p, &half, 2);
}

// Values at..at + W - 1 of a stored row; `at` is a multiple of W.
template <int TYPE>
static inline vf cached_values(const uint8_t* row, int at) {
    if constexpr (TYPE == LK_F32) return load((const float*)row + at);
    if constexpr (TYPE == LK_F16) return from_half(row + at * 2);
    if constexpr (TYPE == LK_BF16) return from_bf16(row + at * 2);
    if constexpr (TYPE == LK_Q8_0) {
        const uint8_t* block = row + at / QUANT_VALUES * Q8_BYTES;
        return mul(from_int8(block + 2 + at % QUANT_VALUES), set1(half_to_float(block)));
    }
    const uint8_t* block = row + at / QUANT_VALUES * Q4_BYTES;
    const int within = at % QUANT_VALUES;
    return mul(from_nibbles(block + 2 + within % 16, within >= 16), set1(half_to_float(block)));
}

// The same for the last `count` < W values of a row; lanes beyond them are 0. Plain types only:
// quantised rows are whole vectors.
template <int TYPE>
static inline vf cached_values_first(const uint8_t* row, int at, int count) {
    if constexpr (TYPE == LK_F32) return load_first((const float*)row + at, count);
    uint8_t copy[W * 2] = {0};
    memcpy(copy, row + at * 2, (size_t)count * 2);
    return cached_values<TYPE>(copy, 0);
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
