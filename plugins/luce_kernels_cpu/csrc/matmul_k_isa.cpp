// Tiles of Q2_K .. Q6_K. Side data: see formats_k.cpp.
#include "codes.h"
#include "super_tile.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

struct Part {
    static constexpr int SUB_BYTES = 32;
    static constexpr bool WIDE = false;
};

// Scale and minimum per 32 values: Q4_K, Q5_K.
template <Planes P>
struct WithMinima : Part {
    static constexpr Planes PLANES = P;
    static constexpr int HEADER_BYTES = 64, HALVES = 1, OFFSET = 0;
    static constexpr bool MINIMA = true;
    static constexpr Split SPLIT = Split::SCALE;
    static inline void codes(const uint8_t* at, Bytes* w) { load_codes<P>(at, w); }
    static inline void scales(const uint8_t* at, Ints* out) { out[0] = i_from_u8(at); }
    static inline void minima(const uint8_t* at, Ints* out) { out[0] = i_from_u8(at + LANES); }
};

// Signed scale per 16 values: Q3_K, Q6_K.
template <Planes P, int OFFSET_, Split SPLIT_>
struct Signed : Part {
    static constexpr Planes PLANES = P;
    static constexpr int HEADER_BYTES = 32, HALVES = 2, OFFSET = OFFSET_;
    static constexpr bool MINIMA = false;
    static constexpr Split SPLIT = SPLIT_;
    static inline void codes(const uint8_t* at, Bytes* w) { load_codes<P>(at, w); }
    static inline void scales(const uint8_t* at, Ints* out) {
        out[0] = i_from_s8(at);
        out[1] = i_from_s8(at + LANES);
    }
    static inline void minima(const uint8_t*, Ints*) {}
};

// Scale and minimum per 16 values, a nibble each: Q2_K.
struct Nibbled : Part {
    static constexpr Planes PLANES = Planes::PAIRS;
    static constexpr int HEADER_BYTES = 64, HALVES = 2, OFFSET = 0;
    static constexpr bool MINIMA = true;
    static constexpr Split SPLIT = Split::NONE;
    static inline void codes(const uint8_t* at, Bytes* w) { load_codes<PLANES>(at, w); }
    static inline void scales(const uint8_t* at, Ints* out) {
        out[0] = i_from_low_nibbles(at);
        out[1] = i_from_low_nibbles(at + LANES);
    }
    static inline void minima(const uint8_t* at, Ints* out) {
        out[0] = i_from_high_nibbles(at);
        out[1] = i_from_high_nibbles(at + LANES);
    }
};

constexpr Kernel Q2_K = super_kernel<Nibbled>();
constexpr Kernel Q3_K = super_kernel<Signed<Planes::PAIRS_BIT, 4, Split::NEGATED>>();
constexpr Kernel Q4_K = super_kernel<WithMinima<Planes::NIBBLES>>();
constexpr Kernel Q5_K = super_kernel<WithMinima<Planes::NIBBLES_BIT>>();
constexpr Kernel Q6_K = super_kernel<Signed<Planes::NIBBLES_PAIR, 32, Split::PRODUCT>>();

}  // namespace

const Kernel* find_k_kernel(int32_t type) {
    switch (type) {
        case 10: return &Q2_K;
        case 11: return &Q3_K;
        case 12: return &Q4_K;
        case 13: return &Q5_K;
        case 14: return &Q6_K;
        default: return nullptr;
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
