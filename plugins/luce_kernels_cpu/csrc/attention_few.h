// Attention of few lines, for which making floats of a block of keys or values costs more than the
// arithmetic on them: keys are turned as they are stored, several to a lane, and widened where they
// are used; values are widened from the cache. The chains are those of attention_tile.h.
#ifndef LUCE_ATTENTION_FEW_H
#define LUCE_ATTENTION_FEW_H

#include "attention_tile.h"

namespace lk {
namespace LK_ISA_NS {

constexpr int FEW_LINES = TILE_ROWS;

// What a fetcher counts as work: about 10 cycles each.
static inline int32_t value_work(int keys, int width) { return keys * (width / TILE_WIDTH); }

// Adds weighted values of `keys` rows, of the head that is number `head` from the rows' on, to at
// most TILE_ROWS lines: as value_block.
using few_values = void (*)(int lines, const float* weights, int64_t weights_stride,
                            const stored_rows& rows, int head, int from, int keys,
                            line_fetcher* next, float* sums, int width);

template <int TYPE, int MR>
static void weigh_rows(const float* weights, int64_t weights_stride, const uint8_t* const* rows,
                       int64_t offset, int keys, line_fetcher* next, float* sums, int width) {
    line_fetcher fetcher = *next;
    for (int at = 0; at < width; at += TILE_WIDTH) {
        vf sum[MR][TILE_VECTORS];
        for (int r = 0; r < MR; r++)
            for (int v = 0; v < TILE_VECTORS; v++)
                sum[r][v] = load(sums + (int64_t)r * width + at + v * W);
        for (int key = 0; key < keys; key++) {
            fetcher.fetch(1);
            vf value[TILE_VECTORS];
            for (int v = 0; v < TILE_VECTORS; v++) {
                value[v] = cached_values<TYPE>(rows[key] + offset, at + v * W);
                in_register(value[v]);
            }
            for (int r = 0; r < MR; r++) {
                const vf x = set1(weights[r * weights_stride + key]);
                for (int v = 0; v < TILE_VECTORS; v++) sum[r][v] = fma(x, value[v], sum[r][v]);
            }
        }
        for (int r = 0; r < MR; r++)
            for (int v = 0; v < TILE_VECTORS; v++)
                store(sums + (int64_t)r * width + at + v * W, sum[r][v]);
    }
    *next = fetcher;
}

template <int TYPE>
static void weigh_few(int lines, const float* weights, int64_t step,
                      const stored_rows& rows, int head, int from, int keys,
                      line_fetcher* next, float* sums, int width) {
    const uint8_t* const* at = rows.row + from;
    const int64_t on = (int64_t)head * rows.bytes;
    switch (lines) {
        case 1: weigh_rows<TYPE, 1>(weights, step, at, on, keys, next, sums, width); break;
        case 2: weigh_rows<TYPE, 2>(weights, step, at, on, keys, next, sums, width); break;
        case 3: weigh_rows<TYPE, 3>(weights, step, at, on, keys, next, sums, width); break;
        case 4: weigh_rows<TYPE, 4>(weights, step, at, on, keys, next, sums, width); break;
        case 5: weigh_rows<TYPE, 5>(weights, step, at, on, keys, next, sums, width); break;
        default: weigh_rows<TYPE, 6>(weights, step, at, on, keys, next, sums, width); break;
    }
}

// NULL where values must be made floats first.
static inline few_values find_few_values(int32_t type, int dim) {
    if (dim % TILE_WIDTH) return nullptr;
    switch (type) {
        case LK_F32: return weigh_few<LK_F32>;
        case LK_F16: return weigh_few<LK_F16>;
        case LK_BF16: return weigh_few<LK_BF16>;
        case LK_Q8_0: return weigh_few<LK_Q8_0>;
        default: return weigh_few<LK_Q4_0>;
    }
}

// How a block of keys is turned, and what scores it: as score_block, but TILE_WIDTH scores are
// written at least.
struct few_keys {
    void (*turn)(const stored_rows& keys, int head, int dim, line_fetcher* next, uint8_t* turned);
    void (*score)(int lines, const float* q, int dim, const uint8_t* turned, int keys,
                  line_fetcher* next, float* scores, int64_t scores_stride);
};

#if defined(__AVX512F__)

static_assert(KV_KEYS == TILE_WIDTH, "a block is one tile");
constexpr int TURN_DIMS = QUANT_VALUES;  // dims that are turned at once
constexpr int TURN_WORK = 6;             // of W keys and TURN_DIMS dims
constexpr int TURN_RUN = 8;  // dims that lie at fixed distances from the first, once turned

// Turns and scores of a block.
static inline int32_t key_work(int keys, int dim) {
    return (keys + W - 1) / W * (dim / TURN_DIMS) * (TURN_WORK + TURN_DIMS / TILE_VECTORS);
}

// Bytes of W turned keys and TURN_DIMS dims.
template <int TYPE>
constexpr int TURNED = TYPE == LK_Q8_0 ? W * TURN_DIMS + W * 4 : W * TURN_DIMS * 2;

static inline __m128i lane_at(const uint8_t* p) { return _mm_loadu_si128((const __m128i*)p); }

// 16 rows of 32 16-bit values -> dim d of all keys at turned + 32 d.
static inline void turn_shorts(const uint8_t* const* rows, int64_t offset, uint8_t* turned) {
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    __m512i x[4][4];  // [8 dims][i]: keys i, i + 4, i + 8, i + 12, one per 128-bit lane
    for (int i = 0; i < 4; i++) {
        const uint8_t* a = rows[i] + offset;
        const uint8_t* b = rows[i + 4] + offset;
        const uint8_t* c = rows[i + 8] + offset;
        const uint8_t* d = rows[i + 12] + offset;
        for (int lane = 0; lane < 4; lane++) {
            const int at = 16 * lane;
            x[lane][i] = _mm512_castsi128_si512(lane_at(a + at));
            x[lane][i] = _mm512_inserti32x4(x[lane][i], lane_at(b + at), 1);
            x[lane][i] = _mm512_inserti32x4(x[lane][i], lane_at(c + at), 2);
            x[lane][i] = _mm512_inserti32x4(x[lane][i], lane_at(d + at), 3);
        }
    }
    for (int lane = 0; lane < 4; lane++) {
        __m512i pairs[4];
        for (int i = 0; i < 2; i++) {
            pairs[i] = _mm512_unpacklo_epi16(x[lane][2 * i], x[lane][2 * i + 1]);
            pairs[i + 2] = _mm512_unpackhi_epi16(x[lane][2 * i], x[lane][2 * i + 1]);
        }
        for (int i = 0; i < 4; i += 2, turned += 128) {
            const __m512i low = _mm512_unpacklo_epi32(pairs[i], pairs[i + 1]);
            const __m512i high = _mm512_unpackhi_epi32(pairs[i], pairs[i + 1]);
            // Two dims of four keys in each 128-bit lane.
            _mm512_store_si512(turned, _mm512_permutexvar_epi64(order, low));
            _mm512_store_si512(turned + 64, _mm512_permutexvar_epi64(order, high));
        }
    }
}

// 16 rows of 32 bytes -> dim d of all keys at turned + d % 16 / 2 * 64 + d / 16 * 32 + d % 2 * 16.
static inline void turn_bytes(const uint8_t* const* rows, int64_t offset, uint8_t* turned) {
    __m512i both[8], pairs[8], fours[8];
    for (int i = 0; i < 8; i++) {
        const __m256i a = _mm256_loadu_si256((const __m256i*)(rows[i] + offset));
        const __m256i b = _mm256_loadu_si256((const __m256i*)(rows[i + 8] + offset));
        both[i] = _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
    }
    for (int i = 0; i < 4; i++) {
        pairs[i] = _mm512_unpacklo_epi8(both[2 * i], both[2 * i + 1]);
        pairs[i + 4] = _mm512_unpackhi_epi8(both[2 * i], both[2 * i + 1]);
    }
    for (int half = 0; half < 8; half += 4) {
        for (int i = 0; i < 2; i++) {
            const __m512i a = pairs[half + 2 * i], b = pairs[half + 2 * i + 1];
            fours[half + i] = _mm512_unpacklo_epi16(a, b);
            fours[half + 2 + i] = _mm512_unpackhi_epi16(a, b);
        }
    }
    // fours[2 m + i]: dims 4 m..4 m + 3 of each group of 16, keys 4 i..4 i + 3 and 8 more.
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    for (int m = 0; m < 4; m++) {
        const __m512i a = fours[2 * m], b = fours[2 * m + 1];
        const __m512i low = _mm512_unpacklo_epi32(a, b), high = _mm512_unpackhi_epi32(a, b);
        _mm512_store_si512(turned + 128 * m, _mm512_permutexvar_epi64(order, low));
        _mm512_store_si512(turned + 128 * m + 64, _mm512_permutexvar_epi64(order, high));
    }
}

template <int TYPE>
static inline void turn_rows(const uint8_t* const* rows, int at, uint8_t* turned) {
    if constexpr (TYPE != LK_Q8_0) return turn_shorts(rows, (int64_t)at * 2, turned);
    const int64_t block = at / QUANT_VALUES * Q8_BYTES;
    uint8_t scales[2 * W];
    for (int i = 0; i < W; i++) memcpy(scales + 2 * i, rows[i] + block, 2);
    turn_bytes(rows, block + 2, turned);
    store((float*)(turned + W * TURN_DIMS), from_half(scales));
}

// -> [dims / TURN_DIMS][KV_KEYS / W][TURNED].
template <int TYPE>
static void turn_keys(const stored_rows& keys, int head, int dim, line_fetcher* next,
                      uint8_t* turned) {
    const int64_t offset = (int64_t)head * keys.bytes;
    for (int key = 0; key < keys.count; key += W, turned += TURNED<TYPE>) {
        const uint8_t* rows[W];
        for (int i = 0; i < W; i++)  // keys beyond the last have nobody's scores
            rows[i] = keys.row[key + i < keys.count ? key + i : keys.count - 1] + offset;
        for (int at = 0; at < dim; at += TURN_DIMS) {
            next->fetch(TURN_WORK);
            turn_rows<TYPE>(rows, at, turned + at / TURN_DIMS * TILE_VECTORS * TURNED<TYPE>);
        }
    }
}

// Where dim 8 `run` of TURN_DIMS begins, and the next ones from there.
template <int TYPE>
static inline int run_offset(int run) {
    return TYPE == LK_Q8_0 ? run % 2 * 256 + run / 2 * 32 : run * TURN_RUN * 32;
}
template <int TYPE>
static inline int dim_offset(int d) {
    return TYPE == LK_Q8_0 ? d / 2 * 64 + d % 2 * 16 : d * 32;
}

template <int TYPE, int MR, int NV>
static void score_turned(const float* q, int dim, const uint8_t* turned, line_fetcher* next,
                         float* scores, int64_t scores_stride) {
    line_fetcher fetcher = *next;
    vf sum[MR][NV];
    for (int r = 0; r < MR; r++)
        for (int v = 0; v < NV; v++) sum[r][v] = zero();
    for (int at = 0; at < dim; at += TURN_DIMS, turned += TILE_VECTORS * TURNED<TYPE>) {
        for (int run = 0; run < TURN_DIMS / TURN_RUN; run++, q += TURN_RUN) {
            const uint8_t* from = turned + run_offset<TYPE>(run);
#pragma GCC unroll 8
            for (int d = 0; d < TURN_RUN; d++) {
                if (d % TILE_VECTORS == 0) fetcher.fetch(NV);
                vf key[NV];
                for (int v = 0; v < NV; v++) {
                    const uint8_t* at_dim = from + v * TURNED<TYPE> + dim_offset<TYPE>(d);
                    if constexpr (TYPE == LK_Q8_0) {
                        const uint8_t* scale = turned + v * TURNED<TYPE> + W * TURN_DIMS;
                        key[v] = mul(from_int8(at_dim), load((const float*)scale));
                    } else {
                        key[v] = cached_values<TYPE>(at_dim, 0);
                    }
                    in_register(key[v]);
                }
                for (int r = 0; r < MR; r++) {
                    const vf x = set1(q[(int64_t)r * dim + d]);
                    for (int v = 0; v < NV; v++) sum[r][v] = fma(x, key[v], sum[r][v]);
                }
            }
        }
    }
    for (int r = 0; r < MR; r++)
        for (int v = 0; v < NV; v++) store(scores + r * scores_stride + v * W, sum[r][v]);
    *next = fetcher;
}

template <int TYPE, int MR>
static void score_groups(const float* q, int dim, const uint8_t* turned, int keys,
                         line_fetcher* next, float* scores, int64_t scores_stride) {
    switch ((keys + W - 1) / W) {
        case 1: return score_turned<TYPE, MR, 1>(q, dim, turned, next, scores, scores_stride);
        case 2: return score_turned<TYPE, MR, 2>(q, dim, turned, next, scores, scores_stride);
        case 3: return score_turned<TYPE, MR, 3>(q, dim, turned, next, scores, scores_stride);
        default: return score_turned<TYPE, MR, 4>(q, dim, turned, next, scores, scores_stride);
    }
}

template <int TYPE>
static void score_few(int lines, const float* q, int dim, const uint8_t* turned, int keys,
                      line_fetcher* next, float* scores, int64_t scores_stride) {
    switch (lines) {
        case 1: score_groups<TYPE, 1>(q, dim, turned, keys, next, scores, scores_stride); break;
        case 2: score_groups<TYPE, 2>(q, dim, turned, keys, next, scores, scores_stride); break;
        case 3: score_groups<TYPE, 3>(q, dim, turned, keys, next, scores, scores_stride); break;
        case 4: score_groups<TYPE, 4>(q, dim, turned, keys, next, scores, scores_stride); break;
        case 5: score_groups<TYPE, 5>(q, dim, turned, keys, next, scores, scores_stride); break;
        default: score_groups<TYPE, 6>(q, dim, turned, keys, next, scores, scores_stride); break;
    }
}

// NULL members where keys must be made floats first.
static inline few_keys find_few_keys(int32_t type, int dim) {
    if (dim % TURN_DIMS) return {nullptr, nullptr};
    switch (type) {
        case LK_F16: return {turn_keys<LK_F16>, score_few<LK_F16>};
        case LK_BF16: return {turn_keys<LK_BF16>, score_few<LK_BF16>};
        case LK_Q8_0: return {turn_keys<LK_Q8_0>, score_few<LK_Q8_0>};
        default: return {nullptr, nullptr};
    }
}

#else

static inline few_keys find_few_keys(int32_t, int) { return {nullptr, nullptr}; }
static inline int32_t key_work(int, int) { return 1; }

#endif

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
