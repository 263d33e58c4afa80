// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: 32 values, an fp16 scale d and for the _1 types an fp16 minimum.
// Byte j of the nibbles holds value j (low) and value j + 16 (high).
//
// Side data: 16 fp16 d, then 16 fp16 minima.
#include <cstring>

#include "formats.h"
#include "half.h"

namespace lk {
namespace {

void nibbles(const uint8_t* qs, uint8_t* codes) {
    for (int j = 0; j < 16; ++j) {
        codes[j] = qs[j] & 15;
        codes[j + 16] = qs[j] >> 4;
    }
}

void nibbles_and_bit(const uint8_t* qh, const uint8_t* qs, uint8_t* codes) {
    nibbles(qs, codes);
    for (int j = 0; j < 32; ++j) codes[j] |= uint8_t(((qh[j / 8] >> (j % 8)) & 1) << 4);
}

void q4_0(const uint8_t* block, int, uint8_t* codes) { nibbles(block + 2, codes); }
void q4_1(const uint8_t* block, int, uint8_t* codes) { nibbles(block + 4, codes); }
void q5_0(const uint8_t* block, int, uint8_t* codes) {
    nibbles_and_bit(block + 2, block + 6, codes);
}
void q5_1(const uint8_t* block, int, uint8_t* codes) {
    nibbles_and_bit(block + 4, block + 8, codes);
}
void q8_0(const uint8_t* block, int, uint8_t* codes) {
    for (int j = 0; j < 32; ++j) codes[j] = block[2 + j] ^ 0x80;
}

void put_d(const uint8_t* block, uint8_t* side, int lane) {
    std::memcpy(side + 2 * lane, block, 2);
}
void put_d_m(const uint8_t* block, uint8_t* side, int lane) {
    std::memcpy(side + 2 * lane, block, 2);
    std::memcpy(side + 32 + 2 * lane, block + 2, 2);
}

Scales get_d(const uint8_t* side, int, int lane) {
    const float d = load_half(side + 2 * lane);
    return {{d, d}, {0, 0}};
}
Scales get_d_m(const uint8_t* side, int, int lane) {
    const float d = load_half(side + 2 * lane), m = load_half(side + 32 + 2 * lane);
    return {{d, d}, {m, m}};
}

constexpr Format FORMATS[] = {
    {2, "q4_0", 32, 18, Layout::INT8, q4_0, put_d, get_d, Planes::NIBBLES, 32, 8, nullptr, false,
     nullptr, false},
    {3, "q4_1", 32, 20, Layout::INT8, q4_1, put_d_m, get_d_m, Planes::NIBBLES, 64, 0, nullptr,
     true, nullptr, false},
    {6, "q5_0", 32, 22, Layout::INT8, q5_0, put_d, get_d, Planes::NIBBLES_BIT, 32, 16, nullptr,
     false, nullptr, false},
    {7, "q5_1", 32, 24, Layout::INT8, q5_1, put_d_m, get_d_m, Planes::NIBBLES_BIT, 64, 0, nullptr,
     true, nullptr, false},
    {8, "q8_0", 32, 34, Layout::INT8, q8_0, put_d, get_d, Planes::BYTES, 32, 128, nullptr, false,
     nullptr, false},
};

}  // namespace

const Format* find_legacy_format(int32_t type) {
    for (const Format& format : FORMATS) {
        if (format.type == type) return &format;
    }
    return nullptr;
}

}  // namespace lk
