// The product of one tile of 16 weight rows with int8 activation rows, for formats whose blocks of
// 256 values have small integer scales inside, as have the activations one scale per 256 values.
//
// Per element and block of 256, in k order:
//     scaled  = sum of scale * dot over parts of 16 or 32 values     [exact, in int32]
//     minima  = sum of minimum * sum of quants, likewise             [formats with minima]
//     sum     = fma(d of the row, fma(-dmin, float(minima), d * float(scaled)), sum)
// Integers may be added in any order: every kernel gives the same bits.
//
// The largest |scaled| is that of Q6_K: 256 values of 32 * 128 * 127, an eighth of what int32 holds.
//
// A format F has
//   HEADER_BYTES, SUB_BYTES  side bytes of a block's head and of each of its parts of 32 values; the
//                            head is 16 fp16 d, then 16 fp16 dmin if MINIMA
//   PLANES, HALVES           code layout; scales per 32 values (1 or 2)
//   MINIMA                   whether parts have minima
//   OFFSET                   what code 0 stands for is -OFFSET
//   WIDE                     codes reach 255: OFFSET is 128 and dot4_offset is needed
//   SPLIT                    see super_wide.h
//   codes(at, w), scales(at, out), minima(at, out)
#ifndef LUCE_SUPER_TILE_H
#define LUCE_SUPER_TILE_H

#include "int8_tile.h"

namespace lk {
namespace LK_ISA_NS {

constexpr int PARTS = SUPER / BLOCK;

// How super_wide.h cuts code * scale into bytes.
enum class Split { NONE, NEGATED, SCALE, PRODUCT };

// Words of two 16-bit sums of quants, per block and row, that meet the minima.
template <class F>
constexpr int minima_words() {
    return F::MINIMA ? PARTS / 2 * F::HALVES : 0;
}
// What `prepare` writes for narrow methods, per block: minima_words(), or one number per scale.
template <class F>
constexpr int super_sums() {
    return F::MINIMA ? minima_words<F>() : has_offset<F>() ? PARTS * F::HALVES : 0;
}
template <class F>
constexpr int super_side_bytes() {
    return F::HEADER_BYTES + PARTS * F::SUB_BYTES;
}
template <class F>
constexpr int super_bytes() {
    return PARTS * planes_bytes(F::PLANES) + super_side_bytes<F>();
}

// The sums of 16 quants of a block, which lie where formats of 32-value blocks have floats.
static inline const int16_t* sums_of_16(const float* s, int64_t block) {
    return reinterpret_cast<const int16_t*>(s) + block * (SUPER / 16);
}

// Two sums of the quants that share a scale, as dot2 takes them.
template <int HALVES>
static inline int32_t sum_pair(const int16_t* sums, int i) {
    const int low = HALVES == 2 ? sums[2 * i] : sums[4 * i] + sums[4 * i + 1];
    const int high = HALVES == 2 ? sums[2 * i + 1] : sums[4 * i + 2] + sums[4 * i + 3];
    return int32_t((uint32_t(high) << 16) | (uint32_t(low) & 0xFFFF));
}

template <class F>
static void prepare_super_sums(const Rows& rows, int64_t blocks, int32_t* sums) {
    constexpr int SUMS = super_sums<F>();
    for (int r = 0; r < rows.count; ++r) {
        for (int64_t i = 0; i < blocks / PARTS; ++i) {
            const int16_t* from = sums_of_16(rows.s + r * rows.d_stride, i);
            int32_t* to = sums + r * rows.sums_stride + i * SUMS;
            for (int j = 0; j < SUMS; ++j) {
                if constexpr (F::MINIMA) {
                    to[j] = sum_pair<F::HALVES>(from, j);
                } else if constexpr (F::HALVES == 2) {
                    to[j] = -F::OFFSET * from[j];
                } else {
                    to[j] = -F::OFFSET * (from[2 * j] + from[2 * j + 1]);
                }
            }
        }
    }
}

// The minima of a block as dot2 takes them.
template <class F>
static inline void minima_pairs(const uint8_t* side, Ints* pairs) {
    side += F::HEADER_BYTES;
    for (int i = 0; i < minima_words<F>(); ++i) {
        Ints low[2], high[2];
        if constexpr (F::HALVES == 2) {
            F::minima(side + i * F::SUB_BYTES, low);
            pairs[i] = i_pair(low[0], low[1]);
        } else {
            F::minima(side + 2 * i * F::SUB_BYTES, low);
            F::minima(side + (2 * i + 1) * F::SUB_BYTES, high);
            pairs[i] = i_pair(low[0], high[0]);
        }
    }
}

struct SuperScale {
    Floats d, minus_dmin;
};
template <class F>
static inline SuperScale super_scale(const uint8_t* side) {
    return {f_from_half(side), F::MINIMA ? f_negative(f_from_half(side + 2 * LANES)) : f_zero()};
}

// Adds a block's product to a row's sums. `words`: minima_words() of the row.
template <class F>
static inline void add_super(const SuperScale& scale, const Ints* minima, Ints scaled,
                             const int32_t* words, float d, float* out) {
    Floats total = f_mul(scale.d, f_from_ints(scaled));
    if constexpr (F::MINIMA) {
        constexpr int WORDS = minima_words<F>();
        Ints sum = i_zero();
#pragma GCC unroll 8
        for (int i = 0; i < WORDS; ++i) sum = dot2(sum, minima[i], i_all(words[i]));
        total = f_fma(scale.minus_dmin, f_from_ints(sum), total);
    }
    f_store(out, f_fma(f_all(d), total, f_load(out)));
}

// Adds the scaled dots of 32 values with M rows, which take turns as in add_block.
template <class F, int M>
static inline __attribute__((always_inline)) void add_part(const Bytes* w, const Ints* scale,
                                                           const int8_t* q, int64_t q_stride,
                                                           const int32_t* sums,
                                                           int64_t sums_stride, Ints* scaled) {
    constexpr int STEP = 8 / F::HALVES;
#pragma GCC unroll 2
    for (int half = 0; half < F::HALVES; ++half) {
        Ints dot[M];
#pragma GCC unroll 8
        for (int r = 0; r < M; ++r) {
            dot[r] = has_offset<F>() ? i_all(sums[r * sums_stride + half]) : i_zero();
        }
#pragma GCC unroll 8
        for (int g = half * STEP; g < half * STEP + STEP; ++g) {
#pragma GCC unroll 8
            for (int r = 0; r < M; ++r) {
                dot[r] = dot_group<F>(dot[r], w[g], q + r * q_stride + 4 * g);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < M; ++r) scaled[r] = i_add(scaled[r], i_mul(scale[half], dot[r]));
    }
}

template <class F, int M>
static void super_rows(const uint8_t* codes, const uint8_t* side, int64_t blocks, const Rows& rows,
                       int first_row, float* out) {
    // Later rows of the same tile find it in the cache.
    const bool fetches = first_row == 0 && rows.next != nullptr;
    const uint8_t* next = fetches ? rows.next : codes;
    constexpr int PART_BYTES = super_bytes<F>() / PARTS, SUMS = super_sums<F>();
    const int64_t next_step = fetches ? PART_BYTES : 0;
    const int8_t* q = rows.q + first_row * rows.q_stride;
    const float* d = rows.d + first_row * rows.d_stride;
    const int32_t* sums = rows.sums + first_row * rows.sums_stride;
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) f_store(out + r * LANES, f_zero());

    for (int64_t block = 0; block < blocks; ++block) {
        Ints scaled[M];
#pragma GCC unroll 8
        for (int r = 0; r < M; ++r) scaled[r] = i_zero();
        for (int part = 0; part < PARTS; ++part) {
            fetch_bytes<PART_BYTES, _MM_HINT_T1>(next);
            fetch_bytes<planes_bytes(F::PLANES), _MM_HINT_T0>(codes + NEAR_BYTES);
            next += next_step;
            Bytes w[8];
            F::codes(codes, w);
            Ints scale[F::HALVES];
            F::scales(side + F::HEADER_BYTES + part * F::SUB_BYTES, scale);
            const int32_t* part_sums = sums + (has_offset<F>() ? part * F::HALVES : 0);
#pragma GCC unroll 8
            for (int r = 0; r < M; r += TURN) {
                add_part<F, (M < TURN ? M : TURN)>(w, scale, q + r * rows.q_stride, rows.q_stride,
                                                   part_sums + r * rows.sums_stride,
                                                   rows.sums_stride, scaled + r);
            }
            codes += planes_bytes(F::PLANES);
            q += BLOCK;
        }
        Ints minima[minima_words<F>() + 1];
        minima_pairs<F>(side, minima);
        const SuperScale scale = super_scale<F>(side);
#pragma GCC unroll 8
        for (int r = 0; r < M; ++r) {
            add_super<F>(scale, minima, scaled[r], sums + r * rows.sums_stride,
                         d[r * rows.d_stride], out + r * LANES);
        }
        side += super_side_bytes<F>();
        d += 1;
        sums += SUMS;
    }
}

template <class F>
static void super_tile(const lk_weight& weight, int64_t tile, const Rows& rows, float* out,
                       uint8_t*) {
    const uint8_t* codes = weight.tile(tile);
    const uint8_t* side = codes + weight.side_offset;
    const int64_t blocks = weight.k / SUPER;
    for_rows(rows.count, [&](auto count, int first) {
        super_rows<F, decltype(count)::value>(codes, side, blocks, rows, first,
                                              out + first * LANES);
    });
}

template <class F>
constexpr Method narrow_super() {
    constexpr int SUMS = super_sums<F>();
    return {(SUMS + PARTS - 1) / PARTS, SUMS ? prepare_super_sums<F> : nullptr, super_tile<F>};
}

}  // namespace LK_ISA_NS
}  // namespace lk

#if defined(__AMX_INT8__)
#include "super_wide.h"
#endif

namespace lk {
namespace LK_ISA_NS {

template <class F>
constexpr Kernel super_kernel() {
#if defined(__AMX_INT8__)
    return {narrow_super<F>(), wide_super<F>(), SUPER_WIDE_FROM};
#else
    return one_method(narrow_super<F>());
#endif
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
