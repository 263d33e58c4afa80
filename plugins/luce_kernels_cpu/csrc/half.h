// Half-precision and little-endian fields of file blocks, without any instruction set.
#ifndef LUCE_HALF_H
#define LUCE_HALF_H

#include <cstdint>
#include <cstring>

namespace lk {

static inline uint16_t load_u16(const uint8_t* p) { return uint16_t(p[0] | (p[1] << 8)); }
static inline uint32_t load_u32(const uint8_t* p) {
    return uint32_t(p[0]) | (uint32_t(p[1]) << 8) | (uint32_t(p[2]) << 16) | (uint32_t(p[3]) << 24);
}

static inline float float_of_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

static inline float half_to_float(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16;
    const uint32_t rest = half & 0x7FFF;
    if (rest >= 0x7C00) return float_of_bits(sign | 0x7F800000 | ((rest & 0x3FF) << 13));
    if (rest >= 0x0400) return float_of_bits(sign | ((rest << 13) + (112u << 23)));
    const float small = float(rest) * 0x1p-24f;  // exact: zero or subnormal
    return sign ? -small : small;
}

static inline float load_half(const uint8_t* p) { return half_to_float(load_u16(p)); }

}  // namespace lk

#endif
