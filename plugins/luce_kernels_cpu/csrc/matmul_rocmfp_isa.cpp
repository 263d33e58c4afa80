// Tiles of the ROCmFP types. Levels of FP3 and FP4 come from byte tables that carry the offset.
#include "codes.h"
#include "int8_tile.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

// The tables of formats_rocmfp.cpp, plus their format's OFFSET.
alignas(16) constexpr uint8_t FP3_BYTES[16] = {4, 5, 6, 8, 4, 3, 2, 0};
alignas(16) constexpr uint8_t FP4_BYTES[16] = {10, 11, 12, 13, 14, 16, 18, 20,
                                               10, 9,  8,  7,  6,  4,  2,  0};

template <Planes P, int HALVES_, int OFFSET_>
struct Scaled {
    static constexpr Planes PLANES = P;
    static constexpr int SUB_BYTES = HALVES_ * LANES, HALVES = HALVES_, OFFSET = OFFSET_;
    static constexpr bool MINIMA = false, WIDE = OFFSET_ == 128;
    static inline void codes(const uint8_t* at, Bytes* w) { load_codes<P>(at, w); }
    static inline void side(const uint8_t* at, Floats* scale, Floats*) {
#pragma GCC unroll 2
        for (int half = 0; half < HALVES; ++half) scale[half] = f_from_e4m3(at + half * LANES);
    }
};

template <Planes P, int HALVES, int OFFSET, const uint8_t (&TABLE)[16]>
struct Looked : Scaled<P, HALVES, OFFSET> {
    static inline void codes(const uint8_t* at, Bytes* w) {
        const Bytes table = b_table(reinterpret_cast<const int8_t*>(TABLE));
        load_codes<P>(at, w);
#pragma GCC unroll 8
        for (int g = 0; g < 8; ++g) w[g] = b_lookup(table, w[g]);
    }
};

constexpr Kernel FP2 = int8_kernel<Scaled<Planes::PAIRS, 2, 1>>();
constexpr Kernel FP3 = int8_kernel<Looked<Planes::PAIRS_BIT, 2, 4, FP3_BYTES>>();
constexpr Kernel FP4 = int8_kernel<Looked<Planes::NIBBLES, 2, 10, FP4_BYTES>>();
constexpr Kernel FP4_FAST = int8_kernel<Looked<Planes::NIBBLES, 1, 10, FP4_BYTES>>();
constexpr Kernel FP6 = int8_kernel<Scaled<Planes::NIBBLES_PAIR, 2, 31>>();
constexpr Kernel FP8 = int8_kernel<Scaled<Planes::BYTES, 1, 128>>();

}  // namespace

const Kernel* find_rocmfp_kernel(int32_t type) {
    switch (type) {
        case 100: return &FP4;
        case 101: return &FP4_FAST;
        case 102: return &FP6;
        case 103: return &FP8;
        case 104: return &FP3;
        case 107: return &FP2;
        default: return nullptr;
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
