#include "planes.h"

#include <cstring>

namespace lk {
namespace {

constexpr int VECTOR = 64;

// Plain loops over fixed counts: the compiler makes them vector operations.
void put_nibbles(uint8_t* at, const uint8_t* codes) {
    uint8_t bytes[16];
    for (int j = 0; j < 16; ++j) bytes[j] = uint8_t((codes[j] & 15) | (codes[j + 16] << 4));
    for (int c = 0; c < 4; ++c) std::memcpy(at + c * VECTOR, bytes + 4 * c, 4);
}

void put_bit(uint8_t* at, const uint8_t* codes, int from) {
    uint8_t bytes[4] = {};
    for (int g = 0; g < 8; ++g) {
        for (int i = 0; i < 4; ++i) bytes[i] |= uint8_t(((codes[4 * g + i] >> from) & 1) << g);
    }
    std::memcpy(at, bytes, 4);
}

void put_pairs(uint8_t* at, const uint8_t* codes, int from) {
    for (int c = 0; c < 2; ++c) {
        uint8_t bytes[4] = {};
        for (int j = 0; j < 4; ++j) {
            for (int i = 0; i < 4; ++i) {
                bytes[i] |= uint8_t(((codes[16 * c + 4 * j + i] >> from) & 3) << (2 * j));
            }
        }
        std::memcpy(at + c * VECTOR, bytes, 4);
    }
}

void get_nibbles(const uint8_t* at, uint8_t* codes) {
    for (int j = 0; j < 16; ++j) {
        const uint8_t byte = at[(j / 4) * VECTOR + j % 4];
        codes[j] = byte & 15;
        codes[j + 16] = byte >> 4;
    }
}

void get_bit(const uint8_t* at, uint8_t* codes, int to) {
    for (int j = 0; j < 32; ++j) codes[j] |= uint8_t(((at[j % 4] >> (j / 4)) & 1) << to);
}

void get_pairs(const uint8_t* at, uint8_t* codes, int to) {
    for (int j = 0; j < 32; ++j) {
        const uint8_t byte = at[(j / 16) * VECTOR + j % 4];
        codes[j] |= uint8_t(((byte >> (2 * (j / 4 % 4))) & 3) << to);
    }
}

}  // namespace

void put_codes(Planes planes, uint8_t* block, int lane, const uint8_t* codes) {
    uint8_t* at = block + 4 * lane;
    switch (planes) {
        case Planes::NIBBLES_BIT: put_bit(at + 4 * VECTOR, codes, 4); break;
        case Planes::NIBBLES_PAIR: put_pairs(at + 4 * VECTOR, codes, 4); break;
        case Planes::PAIRS_BIT: put_bit(at + 2 * VECTOR, codes, 2); break;
        default: break;
    }
    switch (planes) {
        case Planes::NIBBLES:
        case Planes::NIBBLES_BIT:
        case Planes::NIBBLES_PAIR: put_nibbles(at, codes); break;
        case Planes::PAIRS:
        case Planes::PAIRS_BIT: put_pairs(at, codes, 0); break;
        case Planes::BYTES:
            for (int g = 0; g < 8; ++g) std::memcpy(at + g * VECTOR, codes + 4 * g, 4);
            break;
    }
}

void get_codes(Planes planes, const uint8_t* block, int lane, uint8_t* codes) {
    const uint8_t* at = block + 4 * lane;
    std::memset(codes, 0, 32);
    switch (planes) {
        case Planes::NIBBLES:
        case Planes::NIBBLES_BIT:
        case Planes::NIBBLES_PAIR: get_nibbles(at, codes); break;
        case Planes::PAIRS:
        case Planes::PAIRS_BIT: get_pairs(at, codes, 0); break;
        case Planes::BYTES:
            for (int g = 0; g < 8; ++g) std::memcpy(codes + 4 * g, at + g * VECTOR, 4);
            break;
    }
    switch (planes) {
        case Planes::NIBBLES_BIT: get_bit(at + 4 * VECTOR, codes, 4); break;
        case Planes::NIBBLES_PAIR: get_pairs(at + 4 * VECTOR, codes, 4); break;
        case Planes::PAIRS_BIT: get_bit(at + 2 * VECTOR, codes, 2); break;
        default: break;
    }
}

}  // namespace lk
