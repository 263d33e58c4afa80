// silu(gate) * up, with an optional limit: inline, so that a product can go on with it.
#ifndef LUCE_SWIGLU_ROW_H
#define LUCE_SWIGLU_ROW_H

#include "exp.h"

namespace lk {
namespace LK_ISA_NS {

static inline vf gated(vf gate, vf up, float limit) {
    if (limit > 0.0f) {
        // NaN passes: min and max give their second operand then.
        gate = min(set1(limit), gate);
        up = max(set1(-limit), min(set1(limit), up));
    }
    const vf silu = div(gate, add(set1(1.0f), exp(sub(zero(), gate))));
    return mul(silu, up);
}

static inline void gate_values(const float* gate, const float* up, float limit, int n,
                               float* out) {
    int i = 0;
    for (; i + W <= n; i += W) store(out + i, gated(load(gate + i), load(up + i), limit));
    const int rest = n - i;
    if (rest) {
        const vf y = gated(load_first(gate + i, rest), load_first(up + i, rest), limit);
        store_first(out + i, y, rest);
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
