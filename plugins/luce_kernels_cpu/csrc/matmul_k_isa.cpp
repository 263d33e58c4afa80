// Tiles of Q2_K .. Q6_K. Side data: see formats_k.cpp. d times a small scale is exact in float32.
#include "codes.h"
#include "int8_tile.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

struct Super {
    static constexpr int SUBS = 8, SUB_BYTES = 32;
};

// Scale and minimum per 32 values: Q4_K, Q5_K.
template <Planes P>
struct WithMinima : Super {
    static constexpr Planes PLANES = P;
    static constexpr int HEADER_BYTES = 64, HALVES = 1, MINIMA = 1, OFFSET = 0;
    static constexpr bool WIDE = false;
    struct Header {
        Floats d, minus_dmin;
    };
    static inline Header header(const uint8_t* at) {
        return {f_from_half(at), f_negative(f_from_half(at + 32))};
    }
    static inline void codes(const uint8_t* at, Bytes* w) { load_codes<P>(at, w); }
    static inline void side(const uint8_t* at, const Header& h, Floats* scale, Floats* minimum) {
        scale[0] = f_mul(h.d, f_from_u8(at));
        minimum[0] = f_mul(h.minus_dmin, f_from_u8(at + LANES));
    }
};

// Signed scale per 16 values: Q3_K, Q6_K.
template <Planes P, int OFFSET_>
struct Signed : Super {
    static constexpr Planes PLANES = P;
    static constexpr int HEADER_BYTES = 32, HALVES = 2, MINIMA = 0, OFFSET = OFFSET_;
    static constexpr bool WIDE = false;
    struct Header {
        Floats d;
    };
    static inline Header header(const uint8_t* at) { return {f_from_half(at)}; }
    static inline void codes(const uint8_t* at, Bytes* w) { load_codes<P>(at, w); }
    static inline void side(const uint8_t* at, const Header& h, Floats* scale, Floats*) {
        scale[0] = f_mul(h.d, f_from_s8(at));
        scale[1] = f_mul(h.d, f_from_s8(at + LANES));
    }
};

// Scale and minimum per 16 values, a nibble each: Q2_K.
struct Nibbled : Super {
    static constexpr Planes PLANES = Planes::PAIRS;
    static constexpr int HEADER_BYTES = 64, HALVES = 2, MINIMA = 2, OFFSET = 0;
    static constexpr bool WIDE = false;
    using Header = WithMinima<Planes::NIBBLES>::Header;
    static inline Header header(const uint8_t* at) {
        return WithMinima<Planes::NIBBLES>::header(at);
    }
    static inline void codes(const uint8_t* at, Bytes* w) { load_codes<PLANES>(at, w); }
    static inline void side(const uint8_t* at, const Header& h, Floats* scale, Floats* minimum) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            scale[half] = f_mul(h.d, f_from_low_nibbles(at + half * LANES));
            minimum[half] = f_mul(h.minus_dmin, f_from_high_nibbles(at + half * LANES));
        }
    }
};

constexpr Kernel Q2_K = int8_kernel<Nibbled>();
constexpr Kernel Q3_K = int8_kernel<Signed<Planes::PAIRS_BIT, 4>>();
constexpr Kernel Q4_K = int8_kernel<WithMinima<Planes::NIBBLES>>();
constexpr Kernel Q5_K = int8_kernel<WithMinima<Planes::NIBBLES_BIT>>();
constexpr Kernel Q6_K = int8_kernel<Signed<Planes::NIBBLES_PAIR, 32>>();

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
