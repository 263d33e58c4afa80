// Tiles on their way to the caches before they are read.
//
// With few rows a product takes as long as its weights take to come, and they come as fast as they
// are asked for. Lines for the first-level cache can be asked for a few at a time only; the second
// level takes many more. So a tile is asked for there some tiles before it is read, the first ones
// of a record before the barrier in front of it, and the way from there to the first level is
// int8_tile.h's.
#ifndef LUCE_AHEAD_H
#define LUCE_AHEAD_H

#include <cstdint>

#include "kernels.h"

namespace lk {
namespace {

// On Xeons with the weights in the last-level cache 12 to 24 KiB are the same, and 8 are too few.
constexpr int64_t AHEAD_BYTES = 16 << 10;

// How many tiles lie between the one that is read and the one that is asked for.
static inline int64_t tiles_ahead(const lk_weight& weight, int64_t rows) {
    const int64_t tiles = AHEAD_BYTES / weight.tile_bytes;
    return rows > FEW_ROWS || tiles < 1 ? 1 : tiles;
}

static inline void fetch_tile(const lk_weight& weight, int64_t tile) {
    const uint8_t* at = weight.tile(tile);
    for (int64_t i = 0; i < weight.tile_bytes; i += 64) {
        __builtin_prefetch(at + i, 0, 2);  // second level
    }
}

static inline const uint8_t* tile_before(const lk_weight& weight, int64_t tile, int64_t end) {
    return tile < end ? weight.tile(tile) : nullptr;
}

// A unit of lk_gate_up's work is as wide as a block of the output's int8 form.
static inline int unit_columns(const lk_gate_up_args& a) {
    return a.quantized.q != nullptr ? a.quantized.block : BLOCK;
}

struct UnitTile {
    const lk_weight* weight;
    int64_t tile;
};

// Tile `at` in the order of lk_gate_up: those of gate of a unit, then those of up. No weight if it
// belongs to unit `end` or a later one, or to a part of the last unit that is not there.
static inline UnitTile unit_tile(const lk_gate_up_args& a, int64_t at, int64_t end) {
    const int tiles = unit_columns(a) / LANES;
    const int64_t unit = at / (2 * tiles), within = at % (2 * tiles);
    const lk_weight* weight = within < tiles ? a.gate.weight : a.up.weight;
    const int64_t tile = unit * tiles + within % tiles;
    return {unit < end && tile < weight->tiles ? weight : nullptr, tile};
}

}  // namespace
}  // namespace lk

// Whether lk_fetch_ahead does anything for an op.
bool lk_fetches_ahead(int32_t op);
// Asks for what the worker reads first in a record that comes next.
void lk_fetch_ahead(int32_t op, const void* args, const lk_batch* batch, const lk_worker* worker);

#endif
