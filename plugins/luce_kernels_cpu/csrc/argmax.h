// The largest value of a row, as torch.argmax: ties go to the lowest index, NaN is larger than
// all, the first NaN wins. Candidates are offered by rising index; workers' bests in their order.
#ifndef LUCE_ARGMAX_H
#define LUCE_ARGMAX_H

#include "weight.h"

namespace lk {

// Whether a candidate at a higher index replaces what was best.
static inline bool is_better(float value, const Best& best) {
    return best.index < 0 || value > best.value || (value != value && best.value == best.value);
}

}  // namespace lk

#endif
