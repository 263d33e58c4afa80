// IQ4_NL, IQ4_XS, MXFP4: four-bit codes into a table of 16 values. NVFP4 is decoded as it is used.
//
// Side data: IQ4_NL 16 fp16 d; MXFP4 16 exponent bytes; IQ4_XS 16 fp16 d, then per 32 values the
// 16 lanes' signed scales.
#include <cmath>
#include <cstring>

#include "formats.h"
#include "half.h"

namespace lk {

const int8_t IQ4_TABLE[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1,    13,   25,  38,  53,  69,  89,  113};
// e2m1 of the OCP microscaling formats, doubled; block scales are halved to match.
const int8_t E2M1_DOUBLED_TABLE[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

namespace {

void nibbles(const uint8_t* qs, uint8_t* codes) {
    for (int j = 0; j < 16; ++j) {
        codes[j] = qs[j] & 15;
        codes[j + 16] = qs[j] >> 4;
    }
}

void iq4_nl(const uint8_t* block, int, uint8_t* codes) { nibbles(block + 2, codes); }
void iq4_xs(const uint8_t* block, int sub, uint8_t* codes) { nibbles(block + 8 + 16 * sub, codes); }
void mxfp4(const uint8_t* block, int, uint8_t* codes) { nibbles(block + 1, codes); }

void put_iq4_nl(const uint8_t* block, uint8_t* side, int lane) {
    std::memcpy(side + 2 * lane, block, 2);
}
void put_iq4_xs(const uint8_t* block, uint8_t* side, int lane) {
    std::memcpy(side + 2 * lane, block, 2);
    const uint16_t high = load_u16(block + 2);
    for (int sub = 0; sub < 8; ++sub) {
        const int low = (block[4 + sub / 2] >> (4 * (sub % 2))) & 15;
        side[32 + sub * LANES + lane] = uint8_t((low | (((high >> (2 * sub)) & 3) << 4)) - 32);
    }
}
void put_mxfp4(const uint8_t* block, uint8_t* side, int lane) { side[lane] = block[0]; }

Scales both(float scale) { return {{scale, scale}, {0, 0}}; }

Scales get_iq4_nl(const uint8_t* side, int, int lane) { return both(load_half(side + 2 * lane)); }
Scales get_iq4_xs(const uint8_t* side, int sub, int lane) {
    return both(load_half(side + 2 * lane) * float(int8_t(side[32 + sub * LANES + lane])));
}
Scales get_mxfp4(const uint8_t* side, int, int lane) {
    const uint32_t e = side[lane];
    return both(float_of_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23));
}

// scales[4] unsigned e4m3, qs[32]; 4 groups of 16 values; scale 0x7f (no number) means 0.
void nvfp4(const uint8_t* block, float* values) {
    for (int group = 0; group < 4; ++group) {
        const int code = block[group], exponent = (code >> 3) & 15, mantissa = code & 7;
        float scale = exponent == 0 ? float(mantissa) * 0x1p-10f
                                    : std::ldexp(1 + float(mantissa) / 8, exponent - 8);
        if (code == 0x7F) scale = 0;
        const uint8_t* qs = block + 4 + 8 * group;
        for (int j = 0; j < 8; ++j) {
            values[16 * group + j] = scale * float(E2M1_DOUBLED_TABLE[qs[j] & 15]);
            values[16 * group + j + 8] = scale * float(E2M1_DOUBLED_TABLE[qs[j] >> 4]);
        }
    }
}

constexpr Format FORMATS[] = {
    {20, "iq4_nl", 32, 18, Layout::INT8, iq4_nl, put_iq4_nl, get_iq4_nl, Planes::NIBBLES, 32, 0,
     IQ4_TABLE, false, nullptr, false},
    {23, "iq4_xs", 256, 136, Layout::INT8, iq4_xs, put_iq4_xs, get_iq4_xs, Planes::NIBBLES,
     32 + 8 * LANES, 0, IQ4_TABLE, false, nullptr, false},
    {39, "mxfp4", 32, 17, Layout::INT8, mxfp4, put_mxfp4, get_mxfp4, Planes::NIBBLES, 16, 0,
     E2M1_DOUBLED_TABLE, false, nullptr, false},
    {40, "nvfp4", 64, 36, Layout::BLOCKS, nullptr, nullptr, nullptr, Planes::NIBBLES, 0, 0,
     nullptr, false, nvfp4, false},
};

}  // namespace

const Format* find_float4_format(int32_t type) {
    for (const Format& format : FORMATS) {
        if (format.type == type) return &format;
    }
    return nullptr;
}

}  // namespace lk
