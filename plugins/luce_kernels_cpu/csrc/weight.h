// What lk_weight_pack makes, and how lk_matmul and lk_embedding read it.
//
// A tile is 16 weight rows (one lane each); rows past n are zero. Per type one of three layouts:
//  INT8    quants of all 32-value blocks of the tile (see planes.h), then the side data: scales
//          and minima per file block, 16 lanes each (see formats.h)
//  PLAIN   [k][16] elements of F32, F16 or BF16
//  BLOCKS  file rows as they are, decoded when they are used
#ifndef LUCE_WEIGHT_H
#define LUCE_WEIGHT_H

#include <cstdint>

#include "isa.h"
#include "luce_kernels.h"
#include "weight_memory.h"

namespace lk {

constexpr int LANES = 16;
constexpr int BLOCK = 32;  // values that share one activation scale
constexpr int MAX_WORKERS = 1024;  // of lk_pool_create
constexpr int64_t MAX_K = 1 << 20;

enum class Layout : uint8_t { INT8, PLAIN, BLOCKS };

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

    const uint8_t* tile(int64_t index) const { return data + index * tile_bytes; }
};

#endif
