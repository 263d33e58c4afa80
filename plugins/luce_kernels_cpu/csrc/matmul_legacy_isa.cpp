// Tiles of Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0. Side data: see formats_legacy.cpp.
#include "codes.h"
#include "int8_tile.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

template <Planes P, int OFFSET_, bool MINIMUM>
struct Legacy {
    static constexpr int SUB_BYTES = MINIMUM ? 64 : 32, HALVES = 1, OFFSET = OFFSET_;
    static constexpr Planes PLANES = P;
    static constexpr bool MINIMA = MINIMUM, WIDE = OFFSET_ == 128;
    static inline void codes(const uint8_t* at, Bytes* w) { load_codes<P>(at, w); }
    static inline void side(const uint8_t* at, Floats* scale, Floats* minimum) {
        *scale = f_from_half(at);
        if constexpr (MINIMUM) *minimum = f_from_half(at + 32);
    }
};

constexpr Kernel Q4_0 = int8_kernel<Legacy<Planes::NIBBLES, 8, false>>();
constexpr Kernel Q4_1 = int8_kernel<Legacy<Planes::NIBBLES, 0, true>>();
constexpr Kernel Q5_0 = int8_kernel<Legacy<Planes::NIBBLES_BIT, 16, false>>();
constexpr Kernel Q5_1 = int8_kernel<Legacy<Planes::NIBBLES_BIT, 0, true>>();
constexpr Kernel Q8_0 = int8_kernel<Legacy<Planes::BYTES, 128, false>>();

}  // namespace

const Kernel* find_legacy_kernel(int32_t type) {
    switch (type) {
        case 2: return &Q4_0;
        case 3: return &Q4_1;
        case 6: return &Q5_0;
        case 7: return &Q5_1;
        case 8: return &Q8_0;
        default: return nullptr;
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
