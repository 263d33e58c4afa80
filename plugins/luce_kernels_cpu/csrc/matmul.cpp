// lk_matmul: shares tiles among workers and gives each tile all rows of the step, in groups that
// stay in the cache.
#include <algorithm>
#include <cstring>

#include "split.h"
#include "tile_rows.h"

namespace lk {
namespace {

// Bias, then residual. Inline, so that loops over a whole tile's lanes have a count that the
// compiler knows.
inline __attribute__((always_inline)) void finish_rows(const lk_matmul_args& a, int64_t first_row,
                                                       int count, int64_t column, int lanes,
                                                       float* values) {
    if (a.bias != nullptr) add_bias(a.bias + column, count, lanes, values);
    if (a.residual.data != nullptr) {
        const float* residual = a.residual.data + first_row * a.residual.stride + column;
        for (int r = 0; r < count; ++r, residual += a.residual.stride) {
            for (int i = 0; i < lanes; ++i) values[r * LANES + i] += residual[i];
        }
    }
    float* out = a.out.data + first_row * a.out.stride + column;
    for (int r = 0; r < count; ++r, out += a.out.stride) {
        std::memcpy(out, values + r * LANES, size_t(lanes) * sizeof *out);
    }
}

void run_tiles(const lk_matmul_args& a, const Product& product, int64_t first_row,
               Group<1>& group, const lk_worker& worker) {
    const lk_weight& weight = *a.weight;
    Rows& rows = group.rows[0];
    const lk_range share = lk_share(weight.tiles, &worker);
    const int64_t ahead = tiles_ahead(weight, rows.count);
    for (int64_t tile = share.begin; tile < share.end; ++tile) {
        const int64_t column = tile * LANES;
        fetch_out(a.out, first_row, rows.count, column);
        run_tile(product, rows, tile, tile_before(weight, tile + ahead, share.end), group.out,
                 group.work);
        const int64_t left = weight.n - column;
        if (left >= LANES) {
            finish_rows(a, first_row, rows.count, column, LANES, group.out);
        } else {
            finish_rows(a, first_row, rows.count, column, int(left), group.out);
        }
    }
}

}  // namespace
}  // namespace lk

void lk_matmul(const void* args, const lk_batch* batch, lk_worker* worker) {
    using namespace lk;
    const auto& a = *static_cast<const lk_matmul_args*>(args);
    const int64_t all = lk_row_count(&a.x, batch);
    if (all == 0) return;
    const Product products[] = {{a.weight, &a.x, &a.xq}};
    const int64_t step = group_rows(products, 1, 0, all, worker->scratch_bytes);
    for (int64_t first = 0; first < all; first += step) {
        const int64_t count = std::min(step, all - first);
        Group<1> group = begin_group(products, 1, first, count, worker->scratch);
        run_tiles(a, products[0], first, group, *worker);
    }
}
