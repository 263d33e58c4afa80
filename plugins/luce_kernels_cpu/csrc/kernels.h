// The kernels of one instruction set, and what the matmul driver gives them.
#ifndef LUCE_KERNELS_OF_ISA_H
#define LUCE_KERNELS_OF_ISA_H

#include <cstdint>

#include "weight.h"

namespace lk {

// Consecutive activation rows of one call. INT8 kernels read q, d, s and sums; others read x, or
// sums only.
struct Rows {
    int count;
    const int8_t* q;
    const float* d;
    const float* s;
    const int32_t* sums;  // what `prepare` wrote; narrow methods: [rows, sums_stride]
    const float* x;
    int64_t q_stride, d_stride, sums_stride, x_stride;
    const uint8_t* next;  // a tile to ask for, see ahead.h, or NULL
    int64_t k;            // values of a row
};

// `out` has room for whole ROWS_STEP rows, `sums` for rows_of_sums().
constexpr int ROWS_STEP = 16;

constexpr int64_t whole_steps(int64_t rows) {
    return (rows + ROWS_STEP - 1) / ROWS_STEP * ROWS_STEP;
}
// Kernels of few rows fill in what there is, those of more whole steps.
constexpr int64_t FEW_ROWS = 8;
constexpr int64_t rows_of_sums(int64_t rows) { return rows <= FEW_ROWS ? rows : whole_steps(rows); }

struct Method {
    int32_t sums_per_block;  // 4-byte entries per row and 32 values
    // Fills `sums` for rows.count rows of `blocks` blocks; NULL if sums_per_block is 0.
    void (*prepare)(const Rows& rows, int64_t blocks, int32_t* sums);
    // out[r * 16 + lane] of all rows of one tile. `work` has work_bytes() bytes.
    void (*tile)(const lk_weight& weight, int64_t tile, const Rows& rows, float* out,
                 uint8_t* work);
};

// Both methods give the same bits.
struct Kernel {
    Method narrow, wide;
    int32_t wide_from;  // rows

    const Method& method(int64_t rows) const { return rows < wide_from ? narrow : wide; }
};

constexpr Kernel one_method(Method method) { return {method, method, 0}; }

constexpr int DECODE_VALUES = 256;  // the most values that a file block has
constexpr int DECODED_BYTES = DECODE_VALUES * LANES * 4;

constexpr int64_t work_bytes(Layout layout, int64_t rows) {
    const int64_t lost = rows * LANES * 4;
    switch (layout) {
        case Layout::PLAIN: return lost;
        case Layout::BLOCKS: return lost + DECODED_BYTES;
        default: return 0;
    }
}

// The int8 form of n values that begin at column `at` of a row; both are whole blocks.
using QuantizeRow = void (*)(const lk_quantized& to, const float* x, int64_t row, int64_t at,
                             int32_t n);

#define LK_DECLARE_DOTS(NS)                         \
    namespace NS {                                  \
    const Kernel* find_legacy_kernel(int32_t type); \
    const Kernel* find_k_kernel(int32_t type);      \
    const Kernel* find_float4_kernel(int32_t type); \
    const Kernel* find_rocmfp_kernel(int32_t type); \
    const Kernel* find_bf16_kernel(int32_t type);   \
    }
#define LK_DECLARE_ISA(NS)                                                       \
    LK_DECLARE_DOTS(NS)                                                          \
    namespace NS {                                                               \
    const Kernel* find_float_kernel(Layout, int32_t);                            \
    void quantize_row(const lk_quantized&, const float*, int64_t, int64_t, int32_t); \
    }
LK_DECLARE_ISA(avx2)
LK_DECLARE_ISA(avx512)
LK_DECLARE_ISA(avx512_vnni)
LK_DECLARE_DOTS(amx)
#undef LK_DECLARE_DOTS
#undef LK_DECLARE_ISA

// NULL if this instruction set has none for the format.
const Kernel* find_kernel(Isa isa, const Format& format);
QuantizeRow find_quantize_row(Isa isa);

}  // namespace lk

#endif
