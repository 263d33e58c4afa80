// The product of super_tile.h for many activation rows, on the tile registers of AMX: the same bits.
//
// code * scale is an integer of at most 14 bits. It is cut into one or two planes of bytes, which
// are multiplied over all 256 values of a block, and nothing is scaled in between. By SPLIT:
//   NONE     code * scale < 256, unsigned
//   NEGATED  -(code - OFFSET) * scale, which fits a signed byte where the product does not (Q3_K)
//   SCALE    code * (scale & 7) and code * (scale >> 3), unsigned
//   PRODUCT  the low byte, unsigned, and the high byte of (code - OFFSET) * scale
// A block of the weight is decoded at a time and given to all panels of up to 16 rows.
#ifndef LUCE_SUPER_WIDE_H
#define LUCE_SUPER_WIDE_H

#include <cstring>

#include "amx.h"
#include "codes.h"
#include "super_tile.h"

namespace lk {
namespace LK_ISA_NS {

constexpr int SUPER_WIDE_FROM = 9;  // rows; fewer are no faster
static_assert(SUPER_WIDE_FROM > FEW_ROWS, "panels are whole steps of rows");
constexpr int STEP_VALUES = 64;     // that one tile instruction multiplies
constexpr int STEPS = SUPER / STEP_VALUES;

// Tile registers: dots of two panels with two planes, then the panels' quants, then a plane.
enum { DOTS = 0, PANEL_QUANTS = 4, PLANE = 7 };

template <class F>
constexpr int plane_count() {
    return F::SPLIT == Split::NONE || F::SPLIT == Split::NEGATED ? 1 : 2;
}

// One block of up to 16 rows. Missing rows are zeros.
template <class F>
struct Panel {
    int8_t quants[STEPS][PANEL][STEP_VALUES];
    float d[PANEL];
    int32_t words[PANEL][minima_words<F>() + !F::MINIMA];
};

template <class F>
constexpr int panel_sums() {
    return (int(sizeof(Panel<F>)) / (4 * PANEL) + PARTS - 1) / PARTS;
}

// Even panels: a tile instruction takes as long as a panel has rows. An even number, since rows are
// taken in twos.
static inline int panel_rows(int rows) {
    const int panels = (rows + PANEL - 1) / PANEL;
    return ((rows + panels - 1) / panels + 1) / 2 * 2;
}

template <class F>
static void put_super_row(const Rows& rows, int row, int64_t blocks, int panels, Panel<F>* panel,
                          int at) {
    const int8_t* q = rows.q + row * rows.q_stride;
    const float* d = rows.d + row * rows.d_stride;
    for (int64_t i = 0; i < blocks; ++i, panel += panels, q += SUPER) {
        for (int step = 0; step < STEPS; ++step) {
            std::memcpy(panel->quants[step][at], q + step * STEP_VALUES, STEP_VALUES);
        }
        panel->d[at] = d[i];
        const int16_t* sums = sums_of_16(rows.s + row * rows.d_stride, i);
        for (int j = 0; j < minima_words<F>(); ++j) {
            panel->words[at][j] = sum_pair<F::HALVES>(sums, j);
        }
    }
}

template <class F>
static void clear_row(Panel<F>& panel, int at) {
    for (auto& quants : panel.quants) std::memset(quants[at], 0, STEP_VALUES);
    panel.d[at] = 0;
    for (int32_t& word : panel.words[at]) word = 0;
}

// In the order in which they are read: all panels of a block, then those of the next.
template <class F>
static void prepare_super_panels(const Rows& rows, int64_t parts, int32_t* out) {
    const int64_t blocks = parts / PARTS;
    const int height = panel_rows(rows.count), panels = (rows.count + height - 1) / height;
    auto* panel = reinterpret_cast<Panel<F>*>(out);
    for (int r = rows.count; r < panels * height; ++r) {
        for (int64_t i = 0; i < blocks; ++i) clear_row(panel[i * panels + panels - 1], r % height);
    }
    for (int r = 0; r < rows.count; ++r) {
        put_super_row(rows, r, blocks, panels, panel + r / height, r % height);
    }
}

// A block of a tile.
template <class F>
struct Planes256 {
    alignas(64) uint8_t plane[plane_count<F>()][SUPER / 4 * VECTOR_BYTES];
    Ints minima[minima_words<F>() + 1];
    SuperScale scale;
};

static inline Ints both_words(Ints x) { return i_pair(_mm512_and_si512(x, i_all(0xFFFF)), x); }
// Even bytes of `even`, odd bytes of `odd`.
static inline Bytes join_bytes(Bytes even, Bytes odd) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0xFF), even, odd, 0xCA);
}

// The planes of 4 consecutive k of 16 rows; `scale` in both 16-bit words of a lane.
template <class F>
static inline void put_planes(Bytes w, Ints scale, uint8_t* low, uint8_t* high) {
    if constexpr (F::SPLIT == Split::NONE) {
        // Words of two codes: products stay below 256, so that nothing is carried.
        b_store(low, _mm512_mullo_epi16(w, scale));
    } else if constexpr (F::SPLIT == Split::SCALE) {
        b_store(low, _mm512_mullo_epi16(w, _mm512_and_si512(scale, _mm512_set1_epi16(7))));
        b_store(high, _mm512_mullo_epi16(w, _mm512_srli_epi16(scale, 3)));
    } else {
        if (F::SPLIT == Split::NEGATED) scale = _mm512_sub_epi16(i_zero(), scale);
        const Ints even_scale = _mm512_and_si512(scale, _mm512_set1_epi16(0xFF));
        const Ints odd_scale = _mm512_slli_epi16(scale, 8);
        const Ints offset = _mm512_mullo_epi16(scale, _mm512_set1_epi16(F::OFFSET));
        const Ints even = _mm512_sub_epi16(_mm512_maddubs_epi16(w, even_scale), offset);
        const Ints odd = _mm512_sub_epi16(_mm512_maddubs_epi16(w, odd_scale), offset);
        b_store(low, join_bytes(even, _mm512_slli_epi16(odd, 8)));
        if constexpr (F::SPLIT == Split::PRODUCT) {
            b_store(high, join_bytes(_mm512_srli_epi16(even, 8), odd));
        }
    }
}

// Values 32 part .. of a block.
template <class F>
static inline __attribute__((always_inline)) void decode_part(const uint8_t* codes,
                                                              const uint8_t* side, int part,
                                                              Planes256<F>& out) {
    constexpr int GROUP = 8 / F::HALVES;
    uint8_t* low = out.plane[0] + part * 8 * VECTOR_BYTES;
    uint8_t* high = out.plane[plane_count<F>() - 1] + part * 8 * VECTOR_BYTES;
    Bytes w[8];
    F::codes(codes + part * planes_bytes(F::PLANES), w);
    Ints scale[F::HALVES];
    F::scales(side + F::HEADER_BYTES + part * F::SUB_BYTES, scale);
#pragma GCC unroll 2
    for (int half = 0; half < F::HALVES; ++half) {
        const Ints words = both_words(scale[half]);
#pragma GCC unroll 8
        for (int g = half * GROUP; g < half * GROUP + GROUP; ++g) {
            put_planes<F>(w[g], words, low + g * VECTOR_BYTES, high + g * VECTOR_BYTES);
        }
    }
}

template <class F>
static inline void decode_head(const uint8_t* side, Planes256<F>& out) {
    minima_pairs<F>(side, out.minima);
    out.scale = super_scale<F>(side);
    if (F::SPLIT == Split::NEGATED) out.scale.d = f_negative(out.scale.d);
}

// The next block's planes, made between tile instructions: a part every so many calls.
template <class F>
struct Ahead {
    const uint8_t *codes, *side, *fetched;
    Planes256<F>* to;
    int every, wait, part;

    inline __attribute__((always_inline)) void go_on() {
        if (--wait > 0) return;
        constexpr int PART_BYTES = super_bytes<F>() / PARTS;
        fetch_bytes<PART_BYTES, _MM_HINT_T0>(fetched + part * PART_BYTES);
        decode_part<F>(codes, side, part++, *to);
        wait = every;
    }
};

template <class F, int P, int SUM>
static inline void dot_plane() {
    constexpr bool is_signed = F::SPLIT == Split::NEGATED || (F::SPLIT == Split::PRODUCT && P == 1);
    if constexpr (is_signed) {
        tile_dot<SUM, PANEL_QUANTS + SUM / 2, PLANE>();
    } else {
        tile_dot_unsigned<SUM, PANEL_QUANTS + SUM / 2, PLANE>();
    }
}

using SuperDots = int32_t[4][PANEL][LANES];  // [2 panel + plane]

// One panel or two, and where their sums are: [rows][16] of each.
template <class F>
struct Pair {
    const Planes256<F>* tile;
    const Panel<F>* panel;
    float* out;
    int count, height;
};

// What the dots of a pair are multiplied with, in registers: tile instructions count as writes of
// all memory.
template <class F>
struct Factors {
    SuperScale scale;
    Ints minima[minima_words<F>() + 1];

    explicit Factors(const Planes256<F>& tile) : scale(tile.scale) {
        for (int i = 0; i < minima_words<F>(); ++i) minima[i] = tile.minima[i];
    }
};

// Adds the dots of two rows of a panel to their sums.
template <class F>
static inline __attribute__((always_inline)) void take_two(const Pair<F>& pair,
                                                           const Factors<F>& factors, int i,
                                                           int row, const SuperDots& dots) {
    if (i >= pair.count || row >= pair.height) return;
    const Panel<F>& panel = pair.panel[i];
    float* out = pair.out + i * pair.height * LANES;
#pragma GCC unroll 2
    for (int r = row; r < row + 2; ++r) {
        Ints scaled = i_load(dots[2 * i][r]);
        if constexpr (plane_count<F>() == 2) {
            constexpr int BITS = F::SPLIT == Split::SCALE ? 3 : 8;
            scaled = i_add(scaled, _mm512_slli_epi32(i_load(dots[2 * i + 1][r]), BITS));
        }
        add_super<F>(factors.scale, factors.minima, scaled, panel.words[r], panel.d[r],
                     out + r * LANES);
    }
}

// What is done beside the tile instructions of a unit of M panels, in 8 M slots: they take as long,
// but only if they lie close to each other is there always one under way.
template <class F, int M>
static inline __attribute__((always_inline)) void fill_slot(int slot, const Pair<F>& before,
                                                            const Factors<F>& factors,
                                                            const SuperDots& made,
                                                            Ahead<F>& ahead) {
    if constexpr (M == 2) {
        take_two<F>(before, factors, slot % 2, slot / 2 * 2, made);
    } else {
        take_two<F>(before, factors, 0, slot * 2, made);
        take_two<F>(before, factors, 1, slot * 2, made);
    }
    ahead.go_on();
}

// Makes the dots of M panels, takes those of the panels before and decodes ahead.
template <class F, int M>
static inline void run_unit(const Pair<F> pair, SuperDots& out, const Pair<F> before,
                            const SuperDots& made, Ahead<F>& all_ahead) {
    Ahead<F> ahead = all_ahead;
    const Factors<F> factors(*before.tile);
    constexpr bool two = plane_count<F>() == 2;
    constexpr int STEP_BYTES = STEP_VALUES / 4 * VECTOR_BYTES;
    tile_zero<0>();
    if constexpr (two) tile_zero<1>();
    if constexpr (M == 2) tile_zero<2>();
    if constexpr (M == 2 && two) tile_zero<3>();
    for (int step = 0; step < STEPS; ++step) {
        const int slot = 2 * M * step;
        tile_load<PANEL_QUANTS>(pair.panel->quants[step], STEP_VALUES);
        tile_load<PLANE>(pair.tile->plane[0] + step * STEP_BYTES, VECTOR_BYTES);
        dot_plane<F, 0, 0>();
        fill_slot<F, M>(slot, before, factors, made, ahead);
        if constexpr (M == 2) {
            tile_load<PANEL_QUANTS + 1>(pair.panel[1].quants[step], STEP_VALUES);
            dot_plane<F, 0, 2>();
            fill_slot<F, M>(slot + 1, before, factors, made, ahead);
        }
        if constexpr (two) {
            tile_load<PLANE>(pair.tile->plane[1] + step * STEP_BYTES, VECTOR_BYTES);
            dot_plane<F, 1, 1>();
        }
        fill_slot<F, M>(slot + M, before, factors, made, ahead);
        if constexpr (M == 2) {
            if constexpr (two) dot_plane<F, 1, 3>();
            fill_slot<F, M>(slot + 3, before, factors, made, ahead);
        }
    }
    tile_store<0>(out[0], LANES * 4);
    if constexpr (two) tile_store<1>(out[1], LANES * 4);
    if constexpr (M == 2) tile_store<2>(out[2], LANES * 4);
    if constexpr (M == 2 && two) tile_store<3>(out[3], LANES * 4);
    all_ahead = ahead;
}

template <int ROWS_OF_PLANE = 16>
static inline void shape_super_tiles(int height) {
    TileShapes shapes{};
    shapes.palette = 1;
    for (int i = 0; i <= PLANE; ++i) {
        shapes.rows[i] = uint8_t(i == PLANE ? ROWS_OF_PLANE : height);
        shapes.row_bytes[i] = LANES * 4;
    }
    tile_shapes(shapes);
}

template <class F>
static void wide_super_tile(const lk_weight& weight, int64_t index, const Rows& rows, float* out,
                            uint8_t*) {
    const uint8_t* codes = weight.tile(index);
    const uint8_t* side = codes + weight.side_offset;
    const int64_t blocks = weight.k / SUPER;
    const int height = panel_rows(rows.count), panels = (rows.count + height - 1) / height;
    const auto* first = reinterpret_cast<const Panel<F>*>(rows.sums);
    Planes256<F> tile[2];
    alignas(64) SuperDots dots[2];
    shape_super_tiles(height);
    for (int r = 0; r < panels * height; ++r) f_store(out + r * LANES, f_zero());

    for (int part = 0; part < PARTS; ++part) decode_part<F>(codes, side, part, tile[0]);
    decode_head<F>(side, tile[0]);
    Pair<F> before{&tile[1], first, out, 0, height};
    int turn = 0;
    for (int64_t block = 0; block < blocks; ++block) {
        const bool last = block + 1 == blocks;
        codes += PARTS * planes_bytes(F::PLANES);
        side += super_side_bytes<F>();
        Planes256<F>& after = tile[(block + 1) % 2];
        const uint8_t* fetched = rows.next == nullptr ? codes : rows.next + block * super_bytes<F>();
        Ahead<F> ahead{codes, side, fetched, &after, panels, last ? INT32_MAX : 1, 0};
        for (int i = 0; i < panels; i += 2, turn ^= 1) {
            const Pair<F> pair{&tile[block % 2], first + block * panels + i,
                               out + i * height * LANES, panels - i < 2 ? 1 : 2, height};
            if (pair.count == 2) {
                run_unit<F, 2>(pair, dots[turn], before, dots[turn ^ 1], ahead);
            } else {
                run_unit<F, 1>(pair, dots[turn], before, dots[turn ^ 1], ahead);
            }
            before = pair;
        }
        // Only now is nothing left to take that was made with what `after` held.
        if (!last) decode_head<F>(side, after);
    }
    const Factors<F> factors(*before.tile);
    for (int r = 0; r < height; r += 2) {
        take_two<F>(before, factors, 0, r, dots[turn ^ 1]);
        take_two<F>(before, factors, 1, r, dots[turn ^ 1]);
    }
    tile_release();
}

template <class F>
constexpr Method wide_super() {
    return {panel_sums<F>(), prepare_super_panels<F>, wide_super_tile<F>};
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
