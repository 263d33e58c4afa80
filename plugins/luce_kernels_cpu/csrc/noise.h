// The sampler's Gumbel noise: luce_core/sampling/noise.py says what it is, bit for bit.
#ifndef LUCE_NOISE_H
#define LUCE_NOISE_H

#include <stdint.h>

#include "vec.h"

namespace lk {
namespace LK_ISA_NS {

// The finaliser of SplitMix64.
static inline uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

// What tokens 2 * pair (low half) and 2 * pair + 1 (high half) make their noise of.
static inline uint64_t noise_bits(int64_t key, int64_t pair) {
    return mix((uint64_t)key + (uint64_t)(pair + 1) * 0x9E3779B97F4A7C15u);
}

static inline float gumbel(int32_t bits) {
    const double uniform = ((double)bits + (0x1p31 + 0.5)) * 0x1p-32;
    return (float)-__builtin_log(-__builtin_log(uniform));
}

static inline float gumbel_at(int64_t key, int32_t token) {
    const uint64_t both = noise_bits(key, token >> 1);
    return gumbel((int32_t)(uint32_t)(token & 1 ? both >> 32 : both));
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
