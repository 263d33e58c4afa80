// lk_gate_up: a worker computes gate and up of the same columns, and has them gated and quantised
// before they leave its cache.
#include "quantize_row.h"
#include "row_kernels.h"
#include "split.h"
#include "swiglu_row.h"
#include "tile_rows.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

// Where the tiles of a unit, of gate and then of up, lie.
struct Unit {
    int64_t tile;
    int tiles;
    int64_t column;
    int width;
    int most_tiles;
};

Unit unit_at(const lk_weight& weight, int64_t index, int columns) {
    const int most = columns / LANES;
    const int64_t tile = index * most, column = tile * LANES;
    const int64_t tiles = weight.tiles - tile, width = weight.n - column;
    return {tile, int(tiles < most ? tiles : most), column, int(width < columns ? width : columns),
            most};
}

// The tiles of gate, then those of up, into group.out; units from `end` on are another worker's.
void multiply(const lk_gate_up_args& a, const Product (&products)[2], const Unit& unit,
              int64_t ahead, int64_t end, Group<2>& group) {
    for (int side = 0; side < 2; ++side) {
        for (int i = 0; i < unit.tiles; ++i) {
            const int64_t at = 2 * unit.tile + side * unit.most_tiles + i;
            const UnitTile next = unit_tile(a, at + ahead, end);
            run_tile(products[side], group.rows[side], unit.tile + i,
                     next.weight == nullptr ? nullptr : next.weight->tile(next.tile),
                     group.out + (side * unit.most_tiles + i) * group.out_stride, group.work);
        }
    }
}

void finish_row(const lk_gate_up_args& a, int64_t row, const Unit& unit, const float* gate,
                const float* up, int64_t tile_stride) {
    float block[SUPER];
    float* out = a.out.data ? a.out.data + row * a.out.stride + unit.column : block;
    for (int i = 0; i < unit.tiles; ++i) {
        const int left = unit.width - i * LANES;
        const float *g = gate + i * tile_stride, *u = up + i * tile_stride;
        if (left >= LANES) {
            gate_values(g, u, a.limit, LANES, out + i * LANES);
        } else {
            gate_values(g, u, a.limit, left, out + i * LANES);
        }
    }
    if (a.quantized.q) quantize_values(a.quantized, out, row, unit.column, unit.width);
}

void finish(const lk_gate_up_args& a, int64_t first, int count, const Unit& unit,
            const Group<2>& group) {
    float* up = group.out + unit.most_tiles * group.out_stride;
    const lk_projection* const sides[] = {&a.gate, &a.up};
    for (int side = 0; side < 2; ++side) {
        if (sides[side]->bias == nullptr) continue;
        for (int i = 0; i < unit.tiles; ++i) {
            const int left = unit.width - i * LANES;
            add_bias(sides[side]->bias + unit.column + i * LANES, count,
                     left < LANES ? left : LANES,
                     group.out + (side * unit.most_tiles + i) * group.out_stride);
        }
    }
    for (int r = 0; r < count; ++r) {
        finish_row(a, first + r, unit, group.out + r * LANES, up + r * LANES, group.out_stride);
    }
}

}  // namespace

void gate_up(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_gate_up_args& a = *(const lk_gate_up_args*)record;
    const int64_t all = lk_row_count(&a.x, batch);
    if (all == 0) return;
    const Product products[] = {{a.gate.weight, &a.x, &a.gate.xq}, {a.up.weight, &a.x, &a.up.xq}};
    const int columns = unit_columns(a), kept = 2 * columns / LANES;
    const lk_range share = lk_share((a.gate.weight->n + columns - 1) / columns, worker);
    const int64_t step = group_rows(products, kept, 0, all, worker->scratch_bytes);
    for (int64_t first = 0; first < all; first += step) {
        const int64_t count = step < all - first ? step : all - first;
        Group<2> group = begin_group(products, kept, first, count, worker->scratch);
        const int64_t ahead = tiles_ahead(*a.gate.weight, count);
        for (int64_t index = share.begin; index < share.end; index++) {
            const Unit unit = unit_at(*a.gate.weight, index, columns);
            multiply(a, products, unit, ahead, share.end, group);
            finish(a, first, int(count), unit, group);
        }
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
