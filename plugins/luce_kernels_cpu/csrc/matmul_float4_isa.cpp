// Tiles of IQ4_NL, IQ4_XS and MXFP4: codes go through a byte table that carries the offset.
#include "codes.h"
#include "super_tile.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

// The tables of formats.h, plus their format's OFFSET (as bytes).
alignas(16) constexpr uint8_t IQ4_BYTES[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                               129, 141, 153, 166, 181, 197, 217, 241};
alignas(16) constexpr uint8_t E2M1_BYTES[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                12, 11, 10, 9,  8,  6,  4,  0};

template <const uint8_t (&TABLE)[16]>
static inline void table_codes(const uint8_t* at, Bytes* w) {
    const Bytes table = b_table(reinterpret_cast<const int8_t*>(TABLE));
    load_codes<Planes::NIBBLES>(at, w);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) w[g] = b_lookup(table, w[g]);
}

struct TableFormat {
    static constexpr Planes PLANES = Planes::NIBBLES;
    static constexpr int HALVES = 1;
    static constexpr bool MINIMA = false;
};

struct Iq4Nl : TableFormat {
    static constexpr int SUB_BYTES = 32, OFFSET = 128;
    static constexpr bool WIDE = true;
    static inline void codes(const uint8_t* at, Bytes* w) { table_codes<IQ4_BYTES>(at, w); }
    static inline void side(const uint8_t* at, Floats* scale, Floats*) {
        *scale = f_from_half(at);
    }
};

struct Iq4Xs {
    static constexpr Planes PLANES = Planes::NIBBLES;
    static constexpr int HEADER_BYTES = 32, SUB_BYTES = 16, HALVES = 1, OFFSET = 128;
    static constexpr bool WIDE = true, MINIMA = false;
    static constexpr Split SPLIT = Split::PRODUCT;
    static inline void codes(const uint8_t* at, Bytes* w) { table_codes<IQ4_BYTES>(at, w); }
    static inline void scales(const uint8_t* at, Ints* out) { out[0] = i_from_s8(at); }
    static inline void minima(const uint8_t*, Ints*) {}
};

struct Mxfp4 : TableFormat {
    static constexpr int SUB_BYTES = 16, OFFSET = 12;
    static constexpr bool WIDE = false;
    static inline void codes(const uint8_t* at, Bytes* w) { table_codes<E2M1_BYTES>(at, w); }
    static inline void side(const uint8_t* at, Floats* scale, Floats*) {
        *scale = f_from_exponents(at);
    }
};

constexpr Kernel IQ4_NL = int8_kernel<Iq4Nl>();
constexpr Kernel IQ4_XS = super_kernel<Iq4Xs>();
constexpr Kernel MXFP4 = int8_kernel<Mxfp4>();

}  // namespace

const Kernel* find_float4_kernel(int32_t type) {
    switch (type) {
        case 20: return &IQ4_NL;
        case 23: return &IQ4_XS;
        case 39: return &MXFP4;
        default: return nullptr;
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
