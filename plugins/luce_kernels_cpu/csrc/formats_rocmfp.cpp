// The ROCmFP types: 32 small signed levels, and a scale byte for each 16 of them (or for all 32).
// A block is its codes, then its scale bytes; see luce_core/weights/quant/rocmfp.py.
//
// Side data: the 16 lanes' scale bytes of the first 16 values, then of the second (FP4 fast and FP8:
// of all 32). Bytes that are no scale are stored as 0, which is what they mean.
#include "formats.h"
#include "half.h"

namespace lk {
namespace {

enum { FP4 = 100, FP4_FAST = 101, FP6 = 102, FP8 = 103, FP3 = 104, FP2 = 107 };

constexpr int GREATEST_SCALE = 0x7E;

const int8_t FP3_TABLE[16] = {0, 1, 2, 4, 0, -1, -2, -4};
const int8_t FP4_TABLE[16] = {0, 1, 2, 3, 4, 6, 8, 10, 0, -1, -2, -3, -4, -6, -8, -10};

// Codes of `BITS` bits in a little-endian bit stream.
template <int BITS>
void stream(const uint8_t* qs, uint8_t* codes) {
    for (int j = 0; j < BLOCK; ++j) {
        const int bit = j * BITS, at = bit / 8;
        const uint32_t next = bit % 8 + BITS > 8 ? qs[at + 1] : 0;
        codes[j] = uint8_t((((next << 8) | qs[at]) >> (bit % 8)) & ((1u << BITS) - 1));
    }
}

void fp2(const uint8_t* block, int, uint8_t* codes) { stream<2>(block, codes); }
void fp3(const uint8_t* block, int, uint8_t* codes) { stream<3>(block, codes); }
void fp4(const uint8_t* block, int, uint8_t* codes) {
    for (int j = 0; j < 16; ++j) {
        codes[j] = block[j] & 15;
        codes[j + 16] = block[j] >> 4;
    }
}
// Sign and magnitude as level + 31: no table has room for 63 levels.
void fp6(const uint8_t* block, int, uint8_t* codes) {
    stream<6>(block, codes);
    for (int j = 0; j < BLOCK; ++j) {
        const int magnitude = codes[j] & 31;
        codes[j] = uint8_t(31 + (codes[j] & 32 ? -magnitude : magnitude));
    }
}
void fp8(const uint8_t* block, int, uint8_t* codes) {
    for (int j = 0; j < BLOCK; ++j) codes[j] = block[j] ^ 0x80;
}

template <int AT, int COUNT>
void put_scales(const uint8_t* block, uint8_t* side, int lane) {
    for (int i = 0; i < COUNT; ++i) {
        const uint8_t byte = block[AT + i];
        side[i * LANES + lane] = byte > GREATEST_SCALE ? 0 : byte;
    }
}

// 4 bits of exponent and 3 of mantissa are those of a half, whose exponents begin 7 lower.
float scale_of(uint8_t byte) { return half_to_float(uint16_t(byte << 7)) * 128.0f; }

Scales get_two(const uint8_t* side, int, int lane) {
    return {{scale_of(side[lane]), scale_of(side[LANES + lane])}, {0, 0}};
}
Scales get_one(const uint8_t* side, int, int lane) {
    const float scale = scale_of(side[lane]);
    return {{scale, scale}, {0, 0}};
}

constexpr Format FORMATS[] = {
    {FP2, "rocmfp2", 32, 10, Layout::INT8, fp2, put_scales<8, 2>, get_two, Planes::PAIRS,
     2 * LANES, 1, nullptr, false, nullptr, false},
    {FP3, "rocmfp3", 32, 14, Layout::INT8, fp3, put_scales<12, 2>, get_two, Planes::PAIRS_BIT,
     2 * LANES, 0, FP3_TABLE, false, nullptr, false},
    {FP4, "rocmfp4", 32, 18, Layout::INT8, fp4, put_scales<16, 2>, get_two, Planes::NIBBLES,
     2 * LANES, 0, FP4_TABLE, false, nullptr, false},
    {FP4_FAST, "rocmfp4_fast", 32, 17, Layout::INT8, fp4, put_scales<16, 1>, get_one,
     Planes::NIBBLES, LANES, 0, FP4_TABLE, false, nullptr, false},
    {FP6, "rocmfp6", 32, 26, Layout::INT8, fp6, put_scales<24, 2>, get_two, Planes::NIBBLES_PAIR,
     2 * LANES, 31, nullptr, false, nullptr, false},
    {FP8, "rocmfp8", 32, 33, Layout::INT8, fp8, put_scales<32, 1>, get_one, Planes::BYTES, LANES,
     128, nullptr, false, nullptr, false},
};

}  // namespace

const Format* find_rocmfp_format(int32_t type) {
    for (const Format& format : FORMATS) {
        if (format.type == type) return &format;
    }
    return nullptr;
}

}  // namespace lk
