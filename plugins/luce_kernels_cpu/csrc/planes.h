// Where the codes of 16 rows x 32 values lie in memory, for every code width.
//
// Values are cut into 8 groups g of 4 consecutive k; a 64-byte vector holds for lane r, value i
// of the group, byte 4 r + i.
//  nibbles  4 vectors: vector c has group c in its low nibbles and group c + 4 in its high ones
//  bit      1 vector: group g is bit g of each byte
//  pairs    2 vectors: vector c has group 4 c + j at bits 2 j, 2 j + 1
//  bytes    8 vectors, one per group
#ifndef LUCE_PLANES_H
#define LUCE_PLANES_H

#include <cstdint>

namespace lk {

enum class Planes : uint8_t {
    NIBBLES,
    NIBBLES_BIT,   // the fifth bit
    NIBBLES_PAIR,  // the fifth and sixth
    PAIRS,
    PAIRS_BIT,     // the third bit
    BYTES,
};

// Bytes of one 16 x 32 block; a multiple of 64.
constexpr int planes_bytes(Planes planes) {
    switch (planes) {
        case Planes::NIBBLES: return 256;
        case Planes::NIBBLES_BIT: return 320;
        case Planes::NIBBLES_PAIR: return 384;
        case Planes::PAIRS: return 128;
        case Planes::PAIRS_BIT: return 192;
        case Planes::BYTES: return 512;
    }
    return 0;
}

// Writes or reads the 32 codes of one lane. Writing ORs into memory that was zero.
void put_codes(Planes planes, uint8_t* block, int lane, const uint8_t* codes);
void get_codes(Planes planes, const uint8_t* block, int lane, uint8_t* codes);

}  // namespace lk

#endif
