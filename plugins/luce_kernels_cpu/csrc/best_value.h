// The best value of a row of floats.
#ifndef LUCE_BEST_VALUE_H
#define LUCE_BEST_VALUE_H

#include "vec.h"

namespace lk {
namespace LK_ISA_NS {

// As torch.argmax: the lowest index of the largest value, or of the first NaN if there is one.
static inline int32_t best_value(const float* x, int n) {
    const vf lowest = set1(-__builtin_inff());
    vf best = lowest;
    vi best_at = lanes(), at = lanes();
    vm strange = is_nan(best);
    for (int i = 0; i < n; i += W, at = addi(at, seti(W))) {
        const vf value = n - i < W ? select(first(n - i), load_first(x + i, n - i), lowest)
                                   : load(x + i);
        const vm better = greater(value, best);
        best = select(better, value, best);
        best_at = select(better, at, best_at);
        strange = either(strange, is_nan(value));
    }
    if (any(strange)) {
        int32_t i = 0;
        while (x[i] == x[i]) i++;
        return i;
    }
    float values[W];
    int32_t places[W];
    store(values, best);
    storei(places, best_at);
    int top = 0;
    for (int i = 1; i < W; i++) {
        if (values[i] > values[top] || (values[i] == values[top] && places[i] < places[top])) {
            top = i;
        }
    }
    return places[top];
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
