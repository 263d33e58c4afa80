// Vectors of which only the first lanes may lie in memory.
#ifndef LUCE_PARTIAL_VEC_H
#define LUCE_PARTIAL_VEC_H

#include "vec.h"

namespace lk {
namespace LK_ISA_NS {

// A whole vector where n >= W; lanes beyond the first n are 0, and none are read for n <= 0.
static inline vf load_some(const float* p, int n) {
    return n >= W ? load(p) : n > 0 ? load_first(p, n) : zero();
}

// Lanes beyond the first n are not written.
static inline void store_some(float* p, vf x, int n) {
    if (n >= W) {
        store(p, x);
    } else if (n > 0) {
        store_first(p, x, n);
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
