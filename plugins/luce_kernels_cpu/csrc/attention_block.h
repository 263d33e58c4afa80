// Blocks of KV_KEYS cached keys or values as float32, in the order in which the tiles read them.
#ifndef LUCE_ATTENTION_BLOCK_H
#define LUCE_ATTENTION_BLOCK_H

#include "cache_rows.h"

namespace lk {
namespace LK_ISA_NS {

constexpr int KV_KEYS = 64;                 // keys of a block
constexpr int TILE_VECTORS = W == 16 ? 4 : 2;
constexpr int TILE_WIDTH = TILE_VECTORS * W;  // keys, or value dims, that a tile holds at once

static inline int padded(int dim) { return (dim + W - 1) / W * W; }

#if defined(__AVX512F__)
static inline vf quad(vf a, vf b, int which) {
    switch (which) {
        case 0: return _mm512_shuffle_f32x4(a, b, 0x88);
        default: return _mm512_shuffle_f32x4(a, b, 0xdd);
    }
}
// x[i] lane j <-> x[j] lane i
static inline void transpose(vf* x) {
    vf t[W];
    for (int i = 0; i < W; i += 4) {
        const __m512 a = _mm512_unpacklo_ps(x[i], x[i + 1]), b = _mm512_unpackhi_ps(x[i], x[i + 1]);
        const __m512 c = _mm512_unpacklo_ps(x[i + 2], x[i + 3]);
        const __m512 d = _mm512_unpackhi_ps(x[i + 2], x[i + 3]);
        t[i] = _mm512_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
    // t[4g + c] holds columns c, c + 4, c + 8, c + 12 of rows 4g..4g + 3, one per 128-bit lane.
    for (int c = 0; c < 4; c++) {
        const vf even_low = quad(t[c], t[c + 4], 0), odd_low = quad(t[c], t[c + 4], 1);
        const vf even_high = quad(t[c + 8], t[c + 12], 0), odd_high = quad(t[c + 8], t[c + 12], 1);
        x[c] = quad(even_low, even_high, 0);
        x[c + 8] = quad(even_low, even_high, 1);
        x[c + 4] = quad(odd_low, odd_high, 0);
        x[c + 12] = quad(odd_low, odd_high, 1);
    }
}
#else
// x[i] lane j <-> x[j] lane i
static inline void transpose(vf* x) {
    vf t[W];
    for (int i = 0; i < W; i += 4) {
        const __m256 a = _mm256_unpacklo_ps(x[i], x[i + 1]), b = _mm256_unpackhi_ps(x[i], x[i + 1]);
        const __m256 c = _mm256_unpacklo_ps(x[i + 2], x[i + 3]);
        const __m256 d = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
        t[i] = _mm256_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    for (int c = 0; c < 4; c++) {
        x[c] = _mm256_permute2f128_ps(t[c], t[c + 4], 0x20);
        x[c + 4] = _mm256_permute2f128_ps(t[c], t[c + 4], 0x31);
    }
}
#endif

constexpr int RUN_KEYS = 8;  // pointers that are written at once

// Stored rows of up to KV_KEYS positions.
struct stored_rows {
    const uint8_t* row[KV_KEYS + RUN_KEYS];
    int32_t count;
    int32_t bytes;  // of each
};

// What few lines need soon is fetched to the second cache, evenly during arithmetic: asked for at
// once it would fill the core's queue of misses and the arithmetic would wait, and in a pause the
// memory would.
struct line_fetcher {
    static constexpr int32_t PIECE = 128;  // bytes that are asked for at once
    static constexpr int32_t ONE = 1 << 16;

    const uint8_t* const* row;
    const uint8_t* const* stop;
    int32_t at, bytes;
    int32_t rate, credit;  // pieces for a unit of work, and those due; 1 / ONE

    // The rows of `heads` heads, which lie side by side.
    line_fetcher(const stored_rows& rows, int32_t heads)
        : row(rows.row), stop(rows.row + rows.count), at(0), bytes(rows.bytes * heads), rate(0),
          credit(0) {}

    // Spreads what is left over `turns` of `work` each.
    void spread(int32_t turns, int32_t work) {
        const int64_t pieces = (stop - row) * ((bytes + PIECE - 1) / PIECE);
        rate = (int32_t)(pieces * ONE / ((int64_t)turns * work) + 1);
    }

    void fetch(int32_t work) {
        credit += rate * work;
        for (; credit >= ONE && row < stop; credit -= ONE) {
            const char* from = (const char*)*row + at;
            _mm_prefetch(from, _MM_HINT_T1);
            _mm_prefetch(from + PIECE / 2, _MM_HINT_T1);
            at += PIECE;
            if (at >= bytes) {
                at = 0;
                row++;
            }
        }
    }
};

// The rows of the head that is number `head` from theirs on; `room` is for those of another.
static inline const stored_rows& rows_of_head(const stored_rows& rows, int32_t head,
                                              stored_rows* room) {
    if (head == 0) return rows;
    room->count = rows.count;
    room->bytes = rows.bytes;
    for (int32_t key = 0; key < rows.count; key++)
        room->row[key] = rows.row[key] + (int64_t)head * rows.bytes;
    return *room;
}

// A row of what is read next, into the first cache.
static inline void prefetch_row(const stored_rows& rows, int key) {
    if (key >= rows.count) return;
    for (int at = 0; at < rows.bytes; at += 64)
        _mm_prefetch((const char*)rows.row[key] + at, _MM_HINT_T0);
}

// The key rows -> columns [KV_KEYS / TILE_WIDTH][dim][TILE_WIDTH]; columns beyond the
// keys are 0 up to whole vectors, and stay as they are from there.
template <int TYPE>
static void keys_to_columns(const stored_rows& keys, const stored_rows& next, int dim,
                            float* columns) {
    for (int key = 0; key < keys.count; key += W) {
        float* to = columns + (int64_t)(key / TILE_WIDTH) * dim * TILE_WIDTH + key % TILE_WIDTH;
        const int here = keys.count - key < W ? keys.count - key : W;
        for (int i = 0; i < W; i++) prefetch_row(next, key + i);
        for (int at = 0; at < dim; at += W) {
            const int wide = dim - at < W ? dim - at : W;
            vf x[W];
            for (int i = 0; i < W; i++) {
                if (i >= here) {
                    x[i] = zero();
                } else if (wide == W) {
                    x[i] = cached_values<TYPE>(keys.row[key + i], at);
                } else {
                    x[i] = cached_values_first<TYPE>(keys.row[key + i], at, wide);
                }
            }
            transpose(x);
            for (int i = 0; i < wide; i++) store(to + (int64_t)(at + i) * TILE_WIDTH, x[i]);
        }
    }
}

// The value rows -> floats [count][padded(dim)], padding 0.
template <int TYPE>
static void values_to_rows(const stored_rows& values, const stored_rows& next, int dim,
                           float* rows) {
    for (int key = 0; key < values.count; key++) {
        float* to = rows + (int64_t)key * padded(dim);
        prefetch_row(next, key);
        int at = 0;
        for (; at + W <= dim; at += W) store(to + at, cached_values<TYPE>(values.row[key], at));
        if (at < dim) store(to + at, cached_values_first<TYPE>(values.row[key], at, dim - at));
    }
}

// `next`: the rows that are read after these.
using block_reader = void (*)(const stored_rows& rows, const stored_rows& next, int dim,
                              float* block);

static inline block_reader key_reader(int32_t type) {
    switch (type) {
        case LK_F32: return keys_to_columns<LK_F32>;
        case LK_F16: return keys_to_columns<LK_F16>;
        case LK_BF16: return keys_to_columns<LK_BF16>;
        case LK_Q8_0: return keys_to_columns<LK_Q8_0>;
        default: return keys_to_columns<LK_Q4_0>;
    }
}

static inline block_reader value_reader(int32_t type) {
    switch (type) {
        case LK_F32: return values_to_rows<LK_F32>;
        case LK_F16: return values_to_rows<LK_F16>;
        case LK_BF16: return values_to_rows<LK_BF16>;
        case LK_Q8_0: return values_to_rows<LK_Q8_0>;
        default: return values_to_rows<LK_Q4_0>;
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
