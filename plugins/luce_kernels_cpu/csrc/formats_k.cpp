// Q2_K .. Q6_K: 256 values, an fp16 scale d (and minimum dmin), a small scale per 16 or 32 values.
//
// Side data, a file block: 16 fp16 d (16 fp16 dmin), then per 32 values bytes for the 16 lanes:
//  Q4_K, Q5_K  scales; minima (six bits each)
//  Q6_K, Q3_K  signed scales of the first 16 values; of the second
//  Q2_K        scale (low nibble) and minimum (high) of the first 16 values; of the second
#include <cstring>

#include "formats.h"
#include "half.h"

namespace lk {
namespace {

constexpr int SUBS = 8;
constexpr int SUB_SIDE = 2 * LANES;

// Of each 32 bytes the lowest bit pairs come first, then the next ones.
void bit_pairs(const uint8_t* field, int sub, uint8_t* codes, int to) {
    const uint8_t* bytes = field + (sub / 4) * 32;
    const int shift = 2 * (sub % 4);
    for (int j = 0; j < 32; ++j) codes[j] |= uint8_t(((bytes[j] >> shift) & 3) << to);
}

void q2_k(const uint8_t* block, int sub, uint8_t* codes) {
    std::memset(codes, 0, 32);
    bit_pairs(block + 16, sub, codes, 0);
}
void q3_k(const uint8_t* block, int sub, uint8_t* codes) {
    for (int j = 0; j < 32; ++j) codes[j] = uint8_t(((block[j] >> sub) & 1) << 2);
    bit_pairs(block + 32, sub, codes, 0);
}
void q4_k(const uint8_t* block, int sub, uint8_t* codes) {
    const uint8_t* qs = block + 16 + (sub / 2) * 32;
    const int shift = 4 * (sub % 2);
    for (int j = 0; j < 32; ++j) codes[j] = (qs[j] >> shift) & 15;
}
void q5_k(const uint8_t* block, int sub, uint8_t* codes) {
    const uint8_t *qh = block + 16, *qs = block + 48 + (sub / 2) * 32;
    const int shift = 4 * (sub % 2);
    for (int j = 0; j < 32; ++j) {
        codes[j] = uint8_t(((qs[j] >> shift) & 15) | (((qh[j] >> sub) & 1) << 4));
    }
}
void q6_k(const uint8_t* block, int sub, uint8_t* codes) {
    // Of each 64 bytes of ql: 64 low nibbles, then 64 high ones.
    const uint8_t* ql = block + (sub / 4) * 64 + (sub % 2) * 32;
    const int shift = 4 * (sub / 2 % 2);
    for (int j = 0; j < 32; ++j) codes[j] = (ql[j] >> shift) & 15;
    bit_pairs(block + 128, sub, codes, 4);
}

uint8_t* sub_side(uint8_t* side, int header, int sub, int lane) {
    return side + header + sub * SUB_SIDE + lane;
}

// The six-bit s and m of groups 0 to 3 are the low bits of scales[0:4] and scales[4:8]; those of
// groups 4 to 7 have their low nibbles in scales[8:12] and their high two bits atop the former.
void put_q4_k(const uint8_t* block, uint8_t* side, int lane) {
    std::memcpy(side + 2 * lane, block, 2);
    std::memcpy(side + 32 + 2 * lane, block + 2, 2);
    const uint8_t *s = block + 4, *m = block + 8, *rest = block + 12;
    for (int i = 0; i < 4; ++i) {
        uint8_t* first = sub_side(side, 64, i, lane);
        uint8_t* second = sub_side(side, 64, i + 4, lane);
        first[0] = s[i] & 63;
        first[LANES] = m[i] & 63;
        second[0] = uint8_t((rest[i] & 15) | ((s[i] >> 2) & 0x30));
        second[LANES] = uint8_t((rest[i] >> 4) | ((m[i] >> 2) & 0x30));
    }
}
void put_q6_k(const uint8_t* block, uint8_t* side, int lane) {
    std::memcpy(side + 2 * lane, block + 208, 2);
    for (int i = 0; i < 16; ++i) sub_side(side, 32, i / 2, lane)[(i % 2) * LANES] = block[192 + i];
}
void put_q3_k(const uint8_t* block, uint8_t* side, int lane) {
    std::memcpy(side + 2 * lane, block + 108, 2);
    for (int i = 0; i < 16; ++i) {
        const int low = (block[96 + i % 8] >> (4 * (i / 8))) & 15;
        const int high = (block[104 + i % 4] >> (2 * (i / 4))) & 3;
        sub_side(side, 32, i / 2, lane)[(i % 2) * LANES] = uint8_t((low | (high << 4)) - 32);
    }
}
void put_q2_k(const uint8_t* block, uint8_t* side, int lane) {
    std::memcpy(side + 2 * lane, block + 80, 2);
    std::memcpy(side + 32 + 2 * lane, block + 82, 2);
    for (int i = 0; i < 16; ++i) sub_side(side, 64, i / 2, lane)[(i % 2) * LANES] = block[i];
}

Scales get_q4_k(const uint8_t* side, int sub, int lane) {
    const uint8_t* at = side + 64 + sub * SUB_SIDE + lane;
    const float scale = load_half(side + 2 * lane) * float(at[0]);
    const float minimum = -(load_half(side + 32 + 2 * lane) * float(at[LANES]));
    return {{scale, scale}, {minimum, minimum}};
}
Scales get_signed(const uint8_t* side, int sub, int lane) {
    const uint8_t* at = side + 32 + sub * SUB_SIDE + lane;
    const float d = load_half(side + 2 * lane);
    return {{d * float(int8_t(at[0])), d * float(int8_t(at[LANES]))}, {0, 0}};
}
Scales get_q2_k(const uint8_t* side, int sub, int lane) {
    const uint8_t* at = side + 64 + sub * SUB_SIDE + lane;
    const float d = load_half(side + 2 * lane), dmin = load_half(side + 32 + 2 * lane);
    return {{d * float(at[0] & 15), d * float(at[LANES] & 15)},
            {-(dmin * float(at[0] >> 4)), -(dmin * float(at[LANES] >> 4))}};
}

constexpr Format FORMATS[] = {
    {10, "q2_k", 256, 84, Layout::INT8, q2_k, put_q2_k, get_q2_k, Planes::PAIRS,
     64 + SUBS * SUB_SIDE, 0, nullptr, true, nullptr, false},
    {11, "q3_k", 256, 110, Layout::INT8, q3_k, put_q3_k, get_signed, Planes::PAIRS_BIT,
     32 + SUBS * SUB_SIDE, 4, nullptr, false, nullptr, false},
    {12, "q4_k", 256, 144, Layout::INT8, q4_k, put_q4_k, get_q4_k, Planes::NIBBLES,
     64 + SUBS * SUB_SIDE, 0, nullptr, true, nullptr, false},
    {13, "q5_k", 256, 176, Layout::INT8, q5_k, put_q4_k, get_q4_k, Planes::NIBBLES_BIT,
     64 + SUBS * SUB_SIDE, 0, nullptr, true, nullptr, false},
    {14, "q6_k", 256, 210, Layout::INT8, q6_k, put_q6_k, get_signed, Planes::NIBBLES_PAIR,
     32 + SUBS * SUB_SIDE, 32, nullptr, false, nullptr, false},
};

}  // namespace

const Format* find_k_format(int32_t type) {
    for (const Format& format : FORMATS) {
        if (format.type == type) return &format;
    }
    return nullptr;
}

}  // namespace lk
