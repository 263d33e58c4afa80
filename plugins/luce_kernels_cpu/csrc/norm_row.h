// The root-mean-square norm of one group of values.
#ifndef LUCE_NORM_ROW_H
#define LUCE_NORM_ROW_H

#include "vec.h"

namespace lk {
namespace LK_ISA_NS {

// Four chains, then their sum in one fixed tree: the order depends on n alone.
static inline float sum_of_squares(const float* x, int n) {
    vf a = zero(), b = zero(), c = zero(), d = zero();
    int i = 0;
    for (; i + 4 * W <= n; i += 4 * W) {
        const vf p = load(x + i), q = load(x + i + W);
        const vf r = load(x + i + 2 * W), s = load(x + i + 3 * W);
        a = fma(p, p, a);
        b = fma(q, q, b);
        c = fma(r, r, c);
        d = fma(s, s, d);
    }
    for (; i < n; i += W) {
        const vf p = n - i < W ? load_first(x + i, n - i) : load(x + i);
        a = fma(p, p, a);
    }
    return sum_lanes(add(add(a, b), add(c, d)));
}

static inline void scale_values(const float* x, const float* weight, float scale, int n,
                                float* out) {
    const vf all = set1(scale);
    int i = 0;
    for (; i + W <= n; i += W) store(out + i, mul(mul(load(x + i), all), load(weight + i)));
    if (i < n) {
        const vf y = mul(mul(load_first(x + i, n - i), all), load_first(weight + i, n - i));
        store_first(out + i, y, n - i);
    }
}

static inline float inverse_rms(const float* x, int n, float eps) {
    return 1.0f / __builtin_sqrtf(sum_of_squares(x, n) / (float)n + eps);
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
