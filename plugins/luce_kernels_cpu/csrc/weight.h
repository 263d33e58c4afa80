// What lk_weight_pack makes, and how lk_matmul and lk_embedding read it.
//
// A tile is 16 weight rows (one lane each); rows past n are zero. Per type one of four layouts:
//  INT8    quants of all 32-value blocks of the tile (see planes.h), then the side data: scales
//          and minima per file block, 16 lanes each (see formats.h)
//  PLAIN   [k][16] elements of F32 or F16
//  PAIRS   [k / 2][16][2] elements of BF16, or of F16 times SPLIT_SCALE
//  BLOCKS  file rows as they are, decoded when they are used
// PLAIN and PAIRS have zeros from k up to the next multiple of 32. F16 is PLAIN where no kernel
// takes it as PAIRS, or if a value is MOST_SPLIT or more.
#ifndef LUCE_WEIGHT_H
#define LUCE_WEIGHT_H

#include <cstdint>

#include "isa.h"
#include "luce_kernels.h"
#include "weight_memory.h"

namespace lk {

constexpr int LANES = 16;
constexpr int BLOCK = 32;  // values that share one activation scale
constexpr int SUPER = 256;  // the same for types whose file blocks have scales inside
constexpr int MAX_WORKERS = 1024;  // of lk_pool_create
constexpr int64_t MAX_K = 1 << 20;
// With it no F16 value is subnormal, nor are its bits from the ninth on.
constexpr float SPLIT_SCALE = 1024.0f;
constexpr float MOST_SPLIT = 64.0f;
// Longer rows of F16 and BF16 are multiplied in float32.
constexpr int64_t MOST_ROUNDED_K = 1 << 16;

enum class Layout : uint8_t { INT8, PLAIN, PAIRS, BLOCKS };

struct Format;  // formats.h
struct Kernel;  // kernels.h

}  // namespace lk

struct lk_weight {
    const lk::Format* format;
    const lk::Kernel* kernel;
    lk::Isa isa;
    int64_t n, k;
    int64_t tiles;
    int64_t tile_bytes;   // BLOCKS: bytes of 16 file rows
    int64_t side_offset;  // INT8: where a tile's side data starts
    uint8_t* data;        // `bytes` of `memory`
    lk::WeightMemory memory;
    int64_t bytes;
    char name[32];

    int64_t blocks() const { return (k + lk::BLOCK - 1) / lk::BLOCK; }
    const uint8_t* tile(int64_t index) const { return data + index * tile_bytes; }
};

#endif
