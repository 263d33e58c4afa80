// From the planes of planes.h to 8 vectors of bytes, one per group of 4 consecutive k.
#ifndef LUCE_CODES_H
#define LUCE_CODES_H

#include "planes.h"
#include "simd.h"

namespace lk {
namespace LK_ISA_NS {

constexpr int VECTOR_BYTES = 64;

static inline void nibble_codes(const uint8_t* at, Bytes* w) {
    const Bytes mask = b_all(15);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        const Bytes both = b_load(at + c * VECTOR_BYTES);
        w[c] = b_and(both, mask);
        w[c + 4] = b_and(b_shift<4>(both), mask);
    }
}

// ORs bit g of each byte of `plane` into bit TO of w[g].
template <int TO, int G = 0>
static inline void merge_bit(Bytes plane, Bytes* w) {
    w[G] = b_merge(w[G], b_shift<G - TO>(plane), b_all(1 << TO));
    if constexpr (G < 7) merge_bit<TO, G + 1>(plane, w);
}

// ORs bits 2 j, 2 j + 1 of each byte of `plane` into bits TO, TO + 1 of w[j], j < 4.
template <int TO, int J = 0>
static inline void merge_pair(Bytes plane, Bytes* w) {
    w[J] = b_merge(w[J], b_shift<2 * J - TO>(plane), b_all(3 << TO));
    if constexpr (J < 3) merge_pair<TO, J + 1>(plane, w);
}

template <int J = 0>
static inline void pair_codes(Bytes plane, Bytes* w) {
    w[J] = b_and(b_shift<2 * J>(plane), b_all(3));
    if constexpr (J < 3) pair_codes<J + 1>(plane, w);
}

template <Planes PLANES>
static inline void load_codes(const uint8_t* at, Bytes* w) {
    if constexpr (PLANES == Planes::BYTES) {
#pragma GCC unroll 8
        for (int g = 0; g < 8; ++g) w[g] = b_load(at + g * VECTOR_BYTES);
    } else if constexpr (PLANES == Planes::PAIRS || PLANES == Planes::PAIRS_BIT) {
        pair_codes(b_load(at), w);
        pair_codes(b_load(at + VECTOR_BYTES), w + 4);
        if constexpr (PLANES == Planes::PAIRS_BIT) merge_bit<2>(b_load(at + 2 * VECTOR_BYTES), w);
    } else {
        nibble_codes(at, w);
        if constexpr (PLANES == Planes::NIBBLES_BIT) merge_bit<4>(b_load(at + 4 * VECTOR_BYTES), w);
        if constexpr (PLANES == Planes::NIBBLES_PAIR) {
            merge_pair<4>(b_load(at + 4 * VECTOR_BYTES), w);
            merge_pair<4>(b_load(at + 5 * VECTOR_BYTES), w + 4);
        }
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
