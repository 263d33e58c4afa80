// The product of one tile of 16 weight rows with int8 activation rows, for formats of blocks of 32 values.
//
// Per element and block, in k order: dot (exact in int32), then
//     sum = fma(scale, d * float(dot), sum)       [twice, for scales per 16 values]
//     sum = fma(minimum, s, sum)                  [formats with minima]
// whatever the number of rows: a row's bits depend on that row and the weight row only.
//
// A format F has
//   PLANES, HALVES  code layout; scales of a block (1 or 2)
//   SUB_BYTES       side bytes of a block
//   MINIMA          whether blocks have a minimum, which is times s; they then have one scale
//   OFFSET          what code 0 stands for is -OFFSET
//   WIDE            codes reach 255: OFFSET is 128 and dot4_offset is needed
//   codes(at, w), side(at, scale, minimum)
#ifndef LUCE_INT8_TILE_H
#define LUCE_INT8_TILE_H

#include <type_traits>

#include "kernels.h"
#include "simd.h"

namespace lk {
namespace LK_ISA_NS {

// Whether sums of quants must be taken off the dots.
template <class F>
constexpr bool has_offset() {
    return F::OFFSET != 0 && (!F::WIDE || OFFSET_IN_SUM);
}
template <class F>
constexpr int sums_per_block() {
    return has_offset<F>() ? F::HALVES : 0;
}

// Of a tile, per block.
template <class F>
constexpr int block_bytes() {
    return planes_bytes(F::PLANES) + F::SUB_BYTES;
}

template <class F>
static inline Ints dot_group(Ints sum, Bytes w, const int8_t* q) {
    if constexpr (F::WIDE) return dot4_offset(sum, w, q);
    return dot4(sum, w, q);
}

// Bytes between what is multiplied and what is asked for from the second-level cache.
constexpr int NEAR_BYTES = 2048;

// Later bytes are asked for while these are multiplied: arithmetic fills the window of pending
// instructions long before the loads in it fill the memory's.
template <int BYTES, _mm_hint HINT>
static inline void fetch_bytes(const uint8_t* at) {
    for (int i = 0; i < BYTES; i += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(at + i), HINT);
    }
}

// Where one block of the activations starts.
struct BlockRows {
    const int8_t* q;
    const float* d;
    const float* s;
    const int32_t* sums;
    int64_t q_stride, d_stride, sums_stride;
};

// Adds a block's products to the sums of M rows. Rows take turns: a row's dot is a chain in which
// each link waits for the one before. TURN is 1 where dots need registers of their own.
template <class F, int M>
static inline __attribute__((always_inline)) void add_block(const Bytes* w, const Floats* scale,
                                                            const Floats* minimum,
                                                            const BlockRows& at, Floats* sum) {
    constexpr int STEP = 8 / F::HALVES;
#pragma GCC unroll 2
    for (int half = 0; half < F::HALVES; ++half) {
        Ints dot[M];
#pragma GCC unroll 8
        for (int r = 0; r < M; ++r) {
            dot[r] = has_offset<F>() ? i_all(at.sums[r * at.sums_stride + half]) : i_zero();
        }
#pragma GCC unroll 8
        for (int g = half * STEP; g < half * STEP + STEP; ++g) {
#pragma GCC unroll 8
            for (int r = 0; r < M; ++r) {
                dot[r] = dot_group<F>(dot[r], w[g], at.q + r * at.q_stride + 4 * g);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < M; ++r) {
            const Floats row_d = f_all(at.d[r * at.d_stride]);
            sum[r] = f_fma(scale[half], f_mul(row_d, f_from_ints(dot[r])), sum[r]);
            if constexpr (F::MINIMA) {
                sum[r] = f_fma(*minimum, f_all(at.s[r * at.d_stride]), sum[r]);
            }
        }
    }
}

// Calls rows(count, first) for as many rows at a time as registers have room for; `count` is a
// std::integral_constant.
template <class Call>
static inline void for_rows(int rows, Call&& call) {
    int row = 0;
    for (; rows - row >= MAX_ROWS; row += MAX_ROWS) {
        call(std::integral_constant<int, MAX_ROWS>(), row);
    }
    switch (rows - row) {
        case 0: return;
        case 1: return call(std::integral_constant<int, 1>(), row);
        case 2: return call(std::integral_constant<int, 2>(), row);
        case 3: return call(std::integral_constant<int, 3>(), row);
        default:
            if constexpr (MAX_ROWS > 4) {
                if (rows - row == 4) call(std::integral_constant<int, 4>(), row);
                if (rows - row == 5) call(std::integral_constant<int, 5>(), row);
                if (rows - row == 6) call(std::integral_constant<int, 6>(), row);
                if (rows - row == 7) call(std::integral_constant<int, 7>(), row);
            }
    }
}

template <class F, int M>
static void int8_rows(const uint8_t* codes, const uint8_t* side, int64_t blocks, const Rows& rows,
                      int first_row, float* out) {
    // Later rows of the same tile find it in the cache.
    const bool fetches = first_row == 0 && rows.next != nullptr;
    const uint8_t* next = fetches ? rows.next : codes;
    const int64_t next_step = fetches ? block_bytes<F>() : 0;
    const int64_t q_stride = rows.q_stride, d_stride = rows.d_stride;
    const int64_t sums_stride = rows.sums_stride;
    const int8_t* q = rows.q + first_row * q_stride;
    const float* d = rows.d + first_row * d_stride;
    const float* s = rows.s + first_row * d_stride;
    const int32_t* sums = rows.sums + first_row * sums_stride;

    Floats sum[M];
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) sum[r] = f_zero();

    for (int64_t block = 0; block < blocks; ++block) {
        fetch_bytes<block_bytes<F>(), _MM_HINT_T1>(next);
        fetch_bytes<planes_bytes(F::PLANES), _MM_HINT_T0>(codes + NEAR_BYTES);
        next += next_step;
        Bytes w[8];
        F::codes(codes, w);
        Floats scale[F::HALVES], minimum;
        F::side(side, scale, &minimum);
#pragma GCC unroll 8
        for (int r = 0; r < M; r += TURN) {
            const BlockRows at{q + r * q_stride, d + r * d_stride, s + r * d_stride,
                               sums + r * sums_stride, q_stride, d_stride, sums_stride};
            add_block<F, (M < TURN ? M : TURN)>(w, scale, &minimum, at, sum + r);
        }
        codes += planes_bytes(F::PLANES);
        side += F::SUB_BYTES;
        q += BLOCK;
        d += 1;
        s += 1;
        sums += sums_per_block<F>();
    }
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) f_store(out + r * LANES, sum[r]);
}

template <class F>
static void int8_tile(const lk_weight& weight, int64_t tile, const Rows& rows, float* out,
                      uint8_t*) {
    const uint8_t* codes = weight.tile(tile);
    const uint8_t* side = codes + weight.side_offset;
    const int64_t blocks = weight.k / BLOCK;
    for_rows(rows.count, [&](auto count, int first) {
        int8_rows<F, decltype(count)::value>(codes, side, blocks, rows, first, out + first * LANES);
    });
}

// -OFFSET times the sum of the quants that share a scale.
template <class F>
static void prepare_sums(const Rows& rows, int64_t blocks, int32_t* sums) {
    constexpr int HALVES = F::HALVES, STEP = BLOCK / HALVES;
    for (int r = 0; r < rows.count; ++r) {
        const int8_t* q = rows.q + r * rows.q_stride;
        for (int64_t i = 0; i < blocks * HALVES; ++i) {
            int32_t sum = 0;
            for (int j = 0; j < STEP; ++j) sum += q[i * STEP + j];
            sums[r * rows.sums_stride + i] = -F::OFFSET * sum;
        }
    }
}

template <class F>
constexpr Method narrow_method() {
    constexpr int SUMS = sums_per_block<F>();
    return {SUMS, SUMS ? prepare_sums<F> : nullptr, int8_tile<F>};
}

}  // namespace LK_ISA_NS
}  // namespace lk

#if defined(__AMX_INT8__)
#include "int8_wide.h"
#endif

namespace lk {
namespace LK_ISA_NS {

template <class F>
constexpr Kernel int8_kernel() {
#if defined(__AMX_INT8__)
    return {narrow_method<F>(), wide_method<F>(), WIDE_FROM};
#else
    return one_method(narrow_method<F>());
#endif
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
