// Loops that do nothing but what a kernel is limited by, once per instruction set.
#ifndef LUCE_PEAK_H
#define LUCE_PEAK_H

#include <cstdint>

namespace lk {

// Each returns what it did: operations (a product and a sum are two), or bytes. `sink` has 64 bytes.
struct PeakLoops {
    int64_t (*int8)(int64_t rounds, uint8_t* sink);
    int64_t (*floats)(int64_t rounds, uint8_t* sink);
    int64_t (*read)(const uint8_t* data, int64_t bytes, uint8_t* sink);
};

#define LK_DECLARE_PEAK(NS) \
    namespace NS {          \
    PeakLoops peak_loops(); \
    }
LK_DECLARE_PEAK(avx2)
LK_DECLARE_PEAK(avx512)
LK_DECLARE_PEAK(avx512_vnni)
#undef LK_DECLARE_PEAK

}  // namespace lk

#endif
