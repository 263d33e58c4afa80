// The product of int8_tile.h for many activation rows, on the tile registers of AMX: the same bits.
//
// One instruction multiplies the 16 weight rows with a panel of 16 activation rows over the values
// that share a scale. These dots are exact; they are scaled and added as int8_tile.h does it. A
// chunk of the weight is decoded at a time and given to all panels.
//
// Missing rows of a panel are zeros. Per block of 32 values it has the rows' quants [16][32], their
// scales d [16], and where there are minima s [16].
#ifndef LUCE_INT8_WIDE_H
#define LUCE_INT8_WIDE_H

#include <cstring>

#include "amx.h"
#include "codes.h"
#include "kernels.h"
#include "simd.h"

namespace lk {
namespace LK_ISA_NS {

constexpr int PANEL = 16;
constexpr int WIDE_FROM = PANEL;  // rows; fewer are no faster
static_assert(WIDE_FROM > FEW_ROWS, "panels are whole steps of rows");
// Of a chunk, per row. While a tile instruction is under way vector instructions run at half their
// rate, so that few changes between the two kinds pay; but all of a chunk must stay in the
// first-level cache.
constexpr int MOST_DOTS = 8;

// Tile registers: the RING first ones hold dots, each of which takes as long as the start of three.
enum { RING = 4, QUANTS = RING, CODES };

template <class F>
constexpr int panel_entries() {
    return BLOCK / 4 + 1 + F::MINIMA;
}

template <int HALVES>
static void shape_tiles() {
    TileShapes shapes{};
    shapes.palette = 1;
    for (int i = 0; i <= QUANTS; ++i) {
        shapes.rows[i] = PANEL;
        shapes.row_bytes[i] = LANES * 4;
    }
    shapes.row_bytes[QUANTS] = BLOCK / HALVES;
    shapes.rows[CODES] = BLOCK / 4 / HALVES;
    shapes.row_bytes[CODES] = LANES * 4;
    tile_shapes(shapes);
}

template <class F>
static void put_panel(const Rows& rows, int first, int64_t blocks, int32_t* out) {
    constexpr int ENTRIES = PANEL * panel_entries<F>();
    const int count = rows.count - first < PANEL ? rows.count - first : PANEL;
    if (count < PANEL) std::memset(out, 0, size_t(blocks * ENTRIES * 4));
    for (int r = 0; r < count; ++r) {
        const int8_t* q = rows.q + (first + r) * rows.q_stride;
        const float* d = rows.d + (first + r) * rows.d_stride;
        const float* s = rows.s + (first + r) * rows.d_stride;
        int32_t* quants = out + r * (BLOCK / 4);
        float* scales = reinterpret_cast<float*>(out) + PANEL * BLOCK / 4 + r;
        for (int64_t i = 0; i < blocks; ++i, q += BLOCK, quants += ENTRIES, scales += ENTRIES) {
            std::memcpy(quants, q, BLOCK);
            scales[0] = d[i];
            if constexpr (F::MINIMA) scales[PANEL] = s[i];
        }
    }
}

template <class F>
static void prepare_panels(const Rows& rows, int64_t blocks, int32_t* out) {
    for (int first = 0; first < rows.count; first += PANEL) {
        put_panel<F>(rows, first, blocks, out);
        out += PANEL * panel_entries<F>() * blocks;
    }
}

// A chunk of a tile: signed codes, scales, minima.
template <class F>
struct Decoded {
    static constexpr int BLOCKS = MOST_DOTS / F::HALVES;
    alignas(64) uint8_t codes[BLOCKS * 8 * VECTOR_BYTES];
    Floats scale[BLOCKS][F::HALVES], minimum[BLOCKS];
};

template <class F>
static inline void decode(const uint8_t* codes, const uint8_t* side, int64_t block, int i,
                          Decoded<F>& out) {
    Bytes w[8];
    F::codes(codes + block * planes_bytes(F::PLANES), w);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
        if constexpr (F::OFFSET != 0) w[g] = b_sub(w[g], b_all(uint8_t(F::OFFSET)));
        b_store(out.codes + (8 * i + g) * VECTOR_BYTES, w[g]);
    }
    F::side(side + block * F::SUB_BYTES, out.scale[i], &out.minimum[i]);
}

using Dots = int32_t[MOST_DOTS][PANEL][LANES];

// Starts dots i .. i + RING - 1 of a panel, as far as there are `count`, and takes the RING before.
template <class F, int T = 0>
static inline void ring(const Decoded<F>& tile, int count, const int32_t* panel, int i, Dots& out) {
    if constexpr (T < RING) {
        const int dot = i + T;
        if (i > 0 && dot - RING < count) tile_store<T>(out[dot - RING], LANES * 4);
        if (dot < count) {
            const int32_t* block = panel + dot / F::HALVES * PANEL * panel_entries<F>();
            tile_zero<T>();
            tile_load<QUANTS>(block + dot % F::HALVES * (BLOCK / 8), BLOCK);
            tile_load<CODES>(tile.codes + dot * (8 * VECTOR_BYTES / F::HALVES), VECTOR_BYTES);
            tile_dot<T, QUANTS, CODES>();
        }
        ring<F, T + 1>(tile, count, panel, i, out);
    }
}

// Adds a chunk's product with the first M rows of a panel to out [M][16].
template <class F, int M>
static void multiply(const Decoded<F>& tile, int blocks, const int32_t* panel, float* out) {
    constexpr int HALVES = F::HALVES;
    alignas(64) Dots dots;
    const int count = blocks * HALVES;
    for (int i = 0; i < count + RING; i += RING) ring<F>(tile, count, panel, i, dots);
    Floats sum[M];
#pragma GCC unroll 16
    for (int r = 0; r < M; ++r) sum[r] = f_load(out + r * LANES);
    const auto* d = reinterpret_cast<const float*>(panel + PANEL * BLOCK / 4);
    for (int block = 0; block < blocks; ++block, d += PANEL * panel_entries<F>()) {
#pragma GCC unroll 16
        for (int r = 0; r < M; ++r) {
            const Floats row_d = f_all(d[r]);
#pragma GCC unroll 2
            for (int h = 0; h < HALVES; ++h) {
                const Floats dot = f_from_ints(i_load(dots[block * HALVES + h][r]));
                sum[r] = f_fma(tile.scale[block][h], f_mul(row_d, dot), sum[r]);
                if constexpr (F::MINIMA) {
                    sum[r] = f_fma(tile.minimum[block], f_all(d[PANEL + r]), sum[r]);
                }
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < M; ++r) f_store(out + r * LANES, sum[r]);
}

template <class F>
static void wide_tile(const lk_weight& weight, int64_t index, const Rows& rows, float* out,
                      uint8_t*) {
    constexpr int ENTRIES = PANEL * panel_entries<F>(), BLOCKS = Decoded<F>::BLOCKS;
    const uint8_t* codes = weight.tile(index);
    const uint8_t* side = codes + weight.side_offset;
    const int64_t blocks = weight.k / BLOCK, chunks = (blocks + BLOCKS - 1) / BLOCKS;
    Decoded<F> tile;
    shape_tiles<F::HALVES>();
    for (int r = 0; r < rows.count; ++r) f_store(out + r * LANES, f_zero());
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t first = blocks * chunk / chunks;
        const int count = int(blocks * (chunk + 1) / chunks - first);
        for (int i = 0; i < count; ++i) {
            if (rows.next != nullptr) {
                constexpr int BYTES = block_bytes<F>();
                fetch_bytes<BYTES, _MM_HINT_T0>(rows.next + (first + i) * BYTES);
            }
            decode<F>(codes, side, first + i, i, tile);
        }
        const int32_t* panel = rows.sums + first * ENTRIES;
        for (int r = 0; r < rows.count; r += PANEL, panel += blocks * ENTRIES) {
            if (rows.count - r > PANEL / 2) {
                multiply<F, PANEL>(tile, count, panel, out + r * LANES);
            } else {
                multiply<F, PANEL / 2>(tile, count, panel, out + r * LANES);
            }
        }
    }
    tile_release();
}

template <class F>
constexpr Method wide_method() {
    return {panel_entries<F>(), prepare_panels<F>, wide_tile<F>};
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
