// One head, turned by what lk_turns made of its row: the bits of rope_head.
#ifndef LUCE_TURNED_HEAD_H
#define LUCE_TURNED_HEAD_H

#include "norm_row.h"
#include "rope_row.h"

namespace lk {
namespace LK_ISA_NS {

// Lanes 1 0 3 2 5 4 ...
static inline vf swap_pairs(vf x) {
#if defined(__AVX512F__)
    return _mm512_permute_ps(x, 0xB1);
#else
    return _mm256_permute_ps(x, 0xB1);
#endif
}

// x y becomes x c + y (-s), y c + x s.
static inline void turn_interleaved(float* x, const float* cosine, const float* sine, int n) {
    for (int i = 0; i < n; i += W) {
        const int left = n - i;
        const vf v = left < W ? load_first(x + i, left) : load(x + i);
        const vf y = add(mul(v, load(cosine + i)), mul(swap_pairs(v), load(sine + i)));
        if (left < W) {
            store_first(x + i, y, left);
        } else {
            store(x + i, y);
        }
    }
}

// A head of a row in place: normed if there is a weight, and turned.
static inline void turn_in_place(const lk_rope_args& rope, const float* weight, float eps,
                                 const float* turn, float* x) {
    if (weight != nullptr) scale_values(x, weight, inverse_rms(x, rope.dim, eps), rope.dim, x);
    const float* sine = turn + LK_TURN_WIDTH(rope.pairs, rope.interleaved);
    if (rope.interleaved) {
        turn_interleaved(x, turn, sine, 2 * rope.pairs);
    } else {
        turn_halves(x, x + rope.pairs, turn, sine, rope.pairs, x, x + rope.pairs);
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
