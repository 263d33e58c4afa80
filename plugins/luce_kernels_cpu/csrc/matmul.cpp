// lk_matmul: shares tiles among workers and gives each tile all rows of the step, in groups that
// stay in the cache.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "formats.h"
#include "kernels.h"

namespace lk {
namespace {

constexpr int MOST_GROUP_ROWS = 64;
constexpr int64_t ALIGN = 64;

int64_t aligned(int64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }
int64_t whole_steps(int64_t rows) { return (rows + ROWS_STEP - 1) / ROWS_STEP * ROWS_STEP; }

// The worker's scratch of one group of rows.
struct Scratch {
    float* out;     // [rows][16]
    int32_t* sums;  // [rows * sums_stride]
    uint8_t* work;
};

int64_t sums_stride(const lk_weight& weight, int64_t rows) {
    return weight.kernel->method(rows).sums_per_block * (weight.k / BLOCK);
}

int64_t out_bytes(int64_t rows) { return aligned(whole_steps(rows) * LANES * 4); }
int64_t sums_bytes(const lk_weight& weight, int64_t rows) {
    return aligned(whole_steps(rows) * sums_stride(weight, rows) * 4);
}

int64_t scratch_bytes(const lk_weight& weight, int64_t rows) {
    return out_bytes(rows) + sums_bytes(weight, rows) + work_bytes(weight.format->layout, rows);
}

Scratch divide(uint8_t* at, const lk_weight& weight, int64_t rows) {
    Scratch scratch;
    scratch.out = reinterpret_cast<float*>(at);
    at += out_bytes(rows);
    scratch.sums = reinterpret_cast<int32_t*>(at);
    scratch.work = at + sums_bytes(weight, rows);
    return scratch;
}

// Even groups of whole ROWS_STEP rows (the last may be less) that fit the scratch; the same for
// every worker of a pool.
int64_t group_rows(const lk_weight& weight, int64_t rows, int64_t scratch) {
    int64_t most = MOST_GROUP_ROWS;
    while (most > ROWS_STEP && scratch_bytes(weight, most) > scratch) most -= ROWS_STEP;
    while (most > 1 && scratch_bytes(weight, most) > scratch) --most;
    if (scratch_bytes(weight, most) > scratch) std::abort();  // see lk_matmul_args
    const int64_t groups = (rows + most - 1) / most;
    const int64_t even = (rows + groups - 1) / groups;
    return std::min(most, whole_steps(even));
}

Rows group_of(const lk_matmul_args& a, int64_t first, int64_t count, const Scratch& scratch) {
    Rows rows{};
    rows.count = int(count);
    rows.sums = scratch.sums;
    rows.sums_stride = sums_stride(*a.weight, count);
    if (a.weight->format->layout == Layout::INT8) {
        rows.q = a.xq.q + first * a.xq.q_stride;
        rows.d = a.xq.d + first * a.xq.d_stride;
        rows.s = a.xq.s + first * a.xq.d_stride;
        rows.q_stride = a.xq.q_stride;
        rows.d_stride = a.xq.d_stride;
    } else {
        rows.x = a.x.data + first * a.x.stride;
        rows.x_stride = a.x.stride;
    }
    return rows;
}

// Bias, then residual. Inline, so that loops over a whole tile's lanes have a count that the
// compiler knows.
inline __attribute__((always_inline)) void finish_rows(const lk_matmul_args& a, int64_t first_row,
                                                       int count, int64_t column, int lanes,
                                                       float* values) {
    if (a.bias != nullptr) {
        for (int r = 0; r < count; ++r) {
            for (int i = 0; i < lanes; ++i) values[r * LANES + i] += a.bias[column + i];
        }
    }
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

// Asks for the cache lines that a tile's results will be written to: rows lie pages apart, and the
// arithmetic takes as long as the memory does.
void fetch_out(const lk_matmul_args& a, int64_t first_row, int64_t count, int64_t column) {
    const float* at = a.out.data + first_row * a.out.stride + column;
    for (int64_t r = 0; r < count; ++r) __builtin_prefetch(at + r * a.out.stride, 1);
}

void run_tiles(const lk_matmul_args& a, int64_t first_row, Rows rows,
               const Scratch& scratch, const lk_worker& worker) {
    const lk_weight& weight = *a.weight;
    const Method& method = weight.kernel->method(rows.count);
    const int64_t last = weight.tiles * (worker.index + 1) / worker.count;
    for (int64_t tile = weight.tiles * worker.index / worker.count; tile < last; ++tile) {
        rows.next = tile + 1 < last ? weight.tile(tile + 1) : nullptr;
        const int64_t column = tile * LANES;
        fetch_out(a, first_row, rows.count, column);
        method.tile(weight, tile, rows, scratch.out, scratch.work);
        const int64_t left = weight.n - column;
        if (left >= LANES) {
            finish_rows(a, first_row, rows.count, column, LANES, scratch.out);
        } else {
            finish_rows(a, first_row, rows.count, column, int(left), scratch.out);
        }
    }
}

}  // namespace
}  // namespace lk

void lk_matmul(const void* args, const lk_batch* batch, lk_worker* worker) {
    using namespace lk;
    const auto& a = *static_cast<const lk_matmul_args*>(args);
    const lk_weight& weight = *a.weight;
    const int64_t all = lk_row_count(&a.x, batch);
    if (all == 0) return;
    const int64_t step = group_rows(weight, all, worker->scratch_bytes);
    for (int64_t first = 0; first < all; first += step) {
        const int64_t count = std::min(step, all - first);
        const Scratch scratch = divide(worker->scratch, weight, count);
        const Rows rows = group_of(a, first, count, scratch);
        const auto prepare = weight.kernel->method(count).prepare;
        if (prepare != nullptr) prepare(rows, weight.k / BLOCK, scratch.sums);
        run_tiles(a, first, rows, scratch, *worker);
    }
}
