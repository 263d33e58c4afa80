// BF16 and F16 weights by bfloat16 activations, on the tile registers of AMX, for any number of
// rows. One instruction (TDPBF16PS) adds, per element and 32 consecutive k,
//     (the sum over even k from the first on) + (the sum over odd k)
// to what is there, each product and sum rounded to float32 to the nearest even, subnormals taken
// and given as zero. A row's bits depend on that row and the weight row only.
//
// F16 weights and their activations are each the sum of two bfloat16: of a weight exactly, of an
// activation to 2^-17 of it. Per 32 k three products are added in this order: high by high, high
// weight by low activation, low weight by high activation. The fourth is at most 2^-15 of the
// first.
// The exponent bits of F16 are used as those of bfloat16: weights are 2^-112 times what is stored,
// 2^-102 times what they are (SPLIT_SCALE), activations 2^102 times. Those of 2^26 and more become
// infinite.
//
// The activations of up to PANEL rows are a panel; where there is more than one the last is filled
// up with zeros. MOST_PANELS of them lie together: per block of 32 k, per panel, [rows][32], of F16
// the high halves and then the low ones.
#ifndef LUCE_BF16_WIDE_H
#define LUCE_BF16_WIDE_H

#include <algorithm>
#include <cstring>

#include "amx.h"
#include "bf16.h"
#include "simd.h"

namespace lk {
namespace LK_ISA_NS {

constexpr int PANEL = 16;
constexpr int MOST_PANELS = 4;  // whose sums are in registers at once: tile registers 0 to 3
constexpr int ROW_BYTES = 64;   // of a tile register
constexpr int TILE_BYTES = 16 * ROW_BYTES;
enum { WEIGHT = MOST_PANELS, WEIGHT_LOW, ROWS, ROWS_LOW };

static inline int panel_rows(const Rows& rows) { return std::min(rows.count, PANEL); }
static inline int panel_count(const Rows& rows) { return (rows.count + PANEL - 1) / PANEL; }

static void shape_bf16_tiles(int panel_rows) {
    TileShapes shapes{};
    shapes.palette = 1;
    for (int i = 0; i <= ROWS_LOW; ++i) {
        shapes.rows[i] = uint8_t(i == WEIGHT || i == WEIGHT_LOW ? PANEL : panel_rows);
        shapes.row_bytes[i] = ROW_BYTES;
    }
    tile_shapes(shapes);
}

static inline __m512i rounded(Floats first, Floats second) {
    return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

// 32 values into the panel: rounded; or scaled, and what rounding takes `half` further.
template <bool IS_SPLIT>
static inline void put_values(const float* x, uint8_t* to, int64_t half) {
    Floats first = f_load(x), second = f_load(x + LANES);
    if constexpr (IS_SPLIT) {
        const Floats scale = f_all(0x1p112f / SPLIT_SCALE);
        first = f_mul(first, scale);
        second = f_mul(second, scale);
    }
    const __m512i high = rounded(first, second);
    b_store(to, high);
    if constexpr (IS_SPLIT) {
        const Floats low_first = f_sub(first, f_from_bf16(_mm512_castsi512_si256(high)));
        const Floats low_second = f_sub(second, f_from_bf16(_mm512_extracti64x4_epi64(high, 1)));
        b_store(to + half, rounded(low_first, low_second));
    }
}

template <bool IS_SPLIT>
static void put_bf16_panels(const Rows& rows, int64_t blocks, int32_t* out) {
    const int height = panel_rows(rows), panels = panel_count(rows);
    const int64_t half = height * ROW_BYTES, panel_bytes = IS_SPLIT ? 2 * half : half;
    auto* bytes = reinterpret_cast<uint8_t*>(out);
    if (rows.count % height != 0) std::memset(bytes, 0, size_t(panels * panel_bytes * blocks));
    for (int r = 0; r < rows.count; ++r) {
        const int panel = r / height, first = panel / MOST_PANELS * MOST_PANELS;
        const int64_t step = std::min(panels - first, MOST_PANELS) * panel_bytes;
        uint8_t* to = bytes + first * blocks * panel_bytes + (panel - first) * panel_bytes +
                      r % height * ROW_BYTES;
        const float* x = rows.x + r * rows.x_stride;
        for (int64_t block = 0; block < rows.k / BLOCK; ++block, x += BLOCK, to += step) {
            put_values<IS_SPLIT>(x, to, half);
        }
        if (rows.k % BLOCK != 0) {
            put_values<IS_SPLIT>(RowBlock(rows, r, rows.k / BLOCK).values, to, half);
        }
    }
}

template <int P, int T = 0>
static inline void zero_sums() {
    tile_zero<T>();
    if constexpr (T + 1 < P) zero_sums<P, T + 1>();
}
template <int P, int T = 0>
static inline void store_sums(float* out) {
    tile_store<T>(out + T * PANEL * LANES, LANES * sizeof *out);
    if constexpr (T + 1 < P) store_sums<P, T + 1>(out);
}

// Farther than the hardware looks, and no page before it. Tiles lie in the order of their use.
static inline void fetch_ahead(const uint8_t* w) {
    constexpr int AHEAD = 4096;
    for (int i = 0; i < TILE_BYTES; i += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(w + AHEAD + i), _MM_HINT_T0);
    }
}

// BF16: blocks of a tile are what the instruction reads.
struct Pairs {
    static constexpr bool IS_SPLIT = false;

    template <int P, int T = 0>
    static inline void add(const uint8_t* panels, int64_t half) {
        tile_load<ROWS>(panels, ROW_BYTES);
        tile_dot_bf16<T, ROWS, WEIGHT>();
        if constexpr (T + 1 < P) add<P, T + 1>(panels + half, half);
    }

    template <int P>
    static inline void tile(const uint8_t* w, int64_t blocks, const uint8_t* panels, int64_t half) {
        for (int64_t block = 0; block < blocks; ++block, panels += P * half) {
            fetch_ahead(w + block * TILE_BYTES);
            tile_load<WEIGHT>(w + block * TILE_BYTES, ROW_BYTES);
            add<P>(panels, half);
        }
    }
};

// F16: while a block is multiplied the next one is taken apart.
struct Splits {
    static constexpr bool IS_SPLIT = true;

    // bfloat16 numbers of the same exponent bits: no value has more than 8 significant bits.
    static inline __m512i as_bf16(__m512i half) {
        return _mm512_and_si512(_mm512_srai_epi16(half, 3), _mm512_set1_epi16(int16_t(0x8FFF)));
    }
    static inline __m512i difference(__m512i a, __m512i b) {
        return _mm512_castph_si512(_mm512_sub_ph(_mm512_castsi512_ph(a), _mm512_castsi512_ph(b)));
    }
    static inline void split(const uint8_t* w, uint8_t* out) {
        const __m512i upper = _mm512_set1_epi16(int16_t(0xFFF8));
#pragma GCC unroll 16
        for (int i = 0; i < TILE_BYTES; i += 64) {
            const __m512i value = b_load(w + i), high = _mm512_and_si512(value, upper);
            b_store(out + i, as_bf16(value));
            b_store(out + TILE_BYTES + i, as_bf16(difference(value, high)));
        }
    }

    template <int P, int T = 0>
    static inline void add(const uint8_t* panels, int64_t half) {
        tile_load<ROWS>(panels, ROW_BYTES);
        tile_load<ROWS_LOW>(panels + half, ROW_BYTES);
        tile_dot_bf16<T, ROWS, WEIGHT>();
        tile_dot_bf16<T, ROWS_LOW, WEIGHT>();
        tile_dot_bf16<T, ROWS, WEIGHT_LOW>();
        if constexpr (T + 1 < P) add<P, T + 1>(panels + 2 * half, half);
    }

    template <int P>
    static inline void tile(const uint8_t* w, int64_t blocks, const uint8_t* panels, int64_t half) {
        alignas(64) uint8_t halves[2][2 * TILE_BYTES];
        split(w, halves[0]);
        for (int64_t block = 0; block < blocks; ++block, panels += P * 2 * half) {
            fetch_ahead(w + block * TILE_BYTES);
            if (block + 1 < blocks) split(w + (block + 1) * TILE_BYTES, halves[(block + 1) % 2]);
            const uint8_t* from = halves[block % 2];
            tile_load<WEIGHT>(from, ROW_BYTES);
            tile_load<WEIGHT_LOW>(from + TILE_BYTES, ROW_BYTES);
            add<P>(panels, half);
        }
    }
};

template <class E, int P>
static void add_panels(const uint8_t* w, int64_t blocks, const uint8_t* panels, int height,
                       float* out) {
    zero_sums<P>();
    E::template tile<P>(w, blocks, panels, height * ROW_BYTES);
    store_sums<P>(out);
}

template <class E>
constexpr int halves() {
    return E::IS_SPLIT ? 2 : 1;
}

template <class E>
static void bf16_tile(const lk_weight& weight, int64_t index, const Rows& rows, float* out,
                      uint8_t*) {
    const int height = panel_rows(rows);
    const int64_t blocks = weight.blocks(), panel_bytes = halves<E>() * height * ROW_BYTES;
    const uint8_t* w = weight.tile(index);
    const auto* panels = reinterpret_cast<const uint8_t*>(rows.sums);
    shape_bf16_tiles(height);
    for (int left = panel_count(rows); left > 0; left -= MOST_PANELS) {
        const auto add = left == 1   ? add_panels<E, 1>
                         : left == 2 ? add_panels<E, 2>
                         : left == 3 ? add_panels<E, 3>
                                     : add_panels<E, MOST_PANELS>;
        add(w, blocks, panels, height, out);
        panels += MOST_PANELS * blocks * panel_bytes;
        out += MOST_PANELS * PANEL * LANES;
    }
    tile_release();
}

template <class E>
constexpr Kernel bf16_kernel() {
    return one_method({halves<E>() * ROW_BYTES / 4, put_bf16_panels<E::IS_SPLIT>, bf16_tile<E>});
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
