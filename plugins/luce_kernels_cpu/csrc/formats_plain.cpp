// Types without blocks, and the ternary ones.
#include <cstring>

#include "formats.h"
#include "half.h"

namespace lk {
namespace {

template <typename T>
void plain(const uint8_t* element, float* value) {
    T x;
    std::memcpy(&x, element, sizeof x);
    *value = float(x);
}
void f16(const uint8_t* element, float* value) { *value = load_half(element); }
void split_f16(const uint8_t* element, float* value) {
    *value = load_half(element) * (1.0f / SPLIT_SCALE);
}
void bf16(const uint8_t* element, float* value) {
    *value = float_of_bits(uint32_t(load_u16(element)) << 16);
}

// qs[48] qh[4] d[2]: a byte is a base-3 fraction of five digits (four in qh). Multiplying by 3^i
// drops the digits before i (bytes wrap); three times the rest, over 256, is digit i.
float* digits(const uint8_t* field, int bytes, int count, float d, float* values) {
    uint8_t power = 1;
    for (int i = 0; i < count; ++i, power = uint8_t(power * 3)) {
        for (int j = 0; j < bytes; ++j) {
            const int digit = (uint8_t(field[j] * power) * 3) >> 8;
            *values++ = d * float(digit - 1);
        }
    }
    return values;
}
void tq1_0(const uint8_t* block, float* values) {
    const float d = load_half(block + 52);
    values = digits(block, 32, 5, d, values);
    values = digits(block + 32, 16, 5, d, values);
    digits(block + 48, 4, 4, d, values);
}

// qs[64] d[2]; of each 32 bytes the lowest bit pairs come first.
void tq2_0(const uint8_t* block, float* values) {
    const float d = load_half(block + 64);
    for (int j = 0; j < 256; ++j) {
        const int q = (block[j / 128 * 32 + j % 32] >> (2 * (j / 32 % 4))) & 3;
        values[j] = d * float(q - 1);
    }
}

constexpr Format of(int32_t type, const char* name, int32_t values, int32_t bytes, Layout layout,
                    void (*decode)(const uint8_t*, float*)) {
    return {type,   name, values, bytes, layout, nullptr, nullptr, nullptr, Planes::BYTES, 0, 0,
            nullptr, false, decode, false};
}

constexpr Format LONG_FORMATS[] = {
    of(1, "f16", 1, 2, Layout::BLOCKS, f16),
    of(30, "bf16", 1, 2, Layout::BLOCKS, bf16),
};

constexpr Format SPLIT_FORMAT = of(1, "f16", 1, 2, Layout::PAIRS, split_f16);

constexpr Format FORMATS[] = {
    of(0, "f32", 1, 4, Layout::PLAIN, plain<float>),
    of(1, "f16", 1, 2, Layout::PLAIN, f16),
    of(30, "bf16", 1, 2, Layout::PAIRS, bf16),
    of(24, "i8", 1, 1, Layout::BLOCKS, plain<int8_t>),
    of(25, "i16", 1, 2, Layout::BLOCKS, plain<int16_t>),
    of(26, "i32", 1, 4, Layout::BLOCKS, plain<int32_t>),
    of(27, "i64", 1, 8, Layout::BLOCKS, plain<int64_t>),
    of(28, "f64", 1, 8, Layout::BLOCKS, plain<double>),
    of(34, "tq1_0", 256, 54, Layout::BLOCKS, tq1_0),
    of(35, "tq2_0", 256, 66, Layout::BLOCKS, tq2_0),
};

}  // namespace

const Format* find_plain_format(int32_t type) {
    for (const Format& format : FORMATS) {
        if (format.type == type) return &format;
    }
    return nullptr;
}

const Format* find_long_format(int32_t type) {
    for (const Format& format : LONG_FORMATS) {
        if (format.type == type) return &format;
    }
    return nullptr;
}

const Format* find_split_format(int32_t type) {
    return type == SPLIT_FORMAT.type ? &SPLIT_FORMAT : nullptr;
}

}  // namespace lk
