// Activations as bfloat16: to the nearest, halves to even, as ggml rounds them for BF16 weights.
#ifndef LUCE_BF16_H
#define LUCE_BF16_H

#include <cstdint>
#include <cstring>

#include "kernels.h"

namespace lk {
namespace LK_ISA_NS {

// The value as float bits, of which the lower half is zero. Subnormals are zero; what is no number
// stays none.
static inline uint32_t bf16_bits(float x) {
    uint32_t raw;
    std::memcpy(&raw, &x, 4);
    const uint32_t rounded = raw + 0x7FFF + ((raw >> 16) & 1);
    const uint32_t size = raw & 0x7FFFFFFF;
    const uint32_t number = size < 0x00800000 ? raw & 0x80000000 : rounded;
    return (size > 0x7F800000 ? raw | 0x00400000 : number) & 0xFFFF0000;
}

// Block `block` of row `r`; zeros beyond the row.
struct RowBlock {
    float values[BLOCK];

    RowBlock(const Rows& rows, int r, int64_t block) {
        const float* from = rows.x + r * rows.x_stride + block * BLOCK;
        const int64_t left = rows.k - block * BLOCK;
        if (left >= BLOCK) {
            std::memcpy(values, from, sizeof values);
        } else {
            std::memset(values, 0, sizeof values);
            std::memcpy(values, from, size_t(left) * sizeof *from);
        }
    }
};

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
