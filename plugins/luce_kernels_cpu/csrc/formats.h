// The GGUF types: how file blocks become packed codes and side data, and what they mean.
//
// Facts of the file layouts are ggml's; the reference meaning is luce_core.weights.quant.
#ifndef LUCE_FORMATS_H
#define LUCE_FORMATS_H

#include <cstdint>

#include "planes.h"
#include "weight.h"

namespace lk {

// Scale and minimum of the two halves of a 32-value block: value = scale * code value + minimum.
struct Scales {
    float scale[2];
    float minimum[2];
};

struct Format {
    int32_t type;      // ggml's id
    const char* name;  // lower case
    int32_t block_values, block_bytes;
    Layout layout;

    // INT8 only. Codes of the 32 values `sub` of a file block.
    void (*unpack)(const uint8_t* block, int sub, uint8_t* codes);
    // Writes lane `lane` of the side data of one file block.
    void (*put_side)(const uint8_t* block, uint8_t* side, int lane);
    Scales (*scales)(const uint8_t* side, int sub, int lane);
    Planes planes;
    int32_t side_bytes;   // per file block, all lanes
    int32_t offset;       // code value = code - offset, or table[code]
    const int8_t* table;  // 16 values, or NULL
    bool has_minimum;

    // PLAIN and BLOCKS. Values of one file block (BLOCKS) or element (PLAIN), exactly.
    void (*decode)(const uint8_t* block, float* values);
    bool needs_code_book;

    int subs() const { return block_values / BLOCK; }
    // Values that share a scale in the int8 rows that it multiplies; 0: it reads float rows.
    int int8_block() const {
        return layout != Layout::INT8 ? 0 : block_values == SUPER ? SUPER : BLOCK;
    }
};

// NULL if the type is unknown.
const Format* find_format(int32_t type);

// Families of find_format, each in its own file; NULL if not theirs.
const Format* find_legacy_format(int32_t type);
const Format* find_k_format(int32_t type);
const Format* find_float4_format(int32_t type);
const Format* find_rocmfp_format(int32_t type);
const Format* find_plain_format(int32_t type);
// F16 and BF16 in rows of more than MOST_ROUNDED_K values.
const Format* find_long_format(int32_t type);
// F16 in PAIRS.
const Format* find_split_format(int32_t type);
const Format* find_code_book_format(int32_t type);

extern const int8_t IQ4_TABLE[16];
extern const int8_t E2M1_DOUBLED_TABLE[16];

}  // namespace lk

#endif
