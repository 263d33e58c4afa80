// lk_matmul: shares tiles among workers and gives each tile all rows of the step, in groups that
// stay in the cache.
#include <algorithm>
#include <cstdlib>

#include "argmax.h"
#include "formats.h"
#include "kernels.h"

namespace lk {
namespace {

constexpr int MOST_GROUP_ROWS = 64;
constexpr int ROWS_STEP = 8;  // what kernels do at once
constexpr int64_t ALIGN = 64;

int64_t aligned(int64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

// The worker's scratch of one group of rows.
struct Scratch {
    float* out;     // [rows][16]
    Best* best;     // [rows]
    int32_t* sums;  // [rows][sums_stride]
    uint8_t* work;
};

int64_t sums_stride(const lk_weight& weight) {
    return weight.kernel->sums_per_block * (weight.k / BLOCK);
}

int64_t scratch_bytes(const lk_weight& weight, int64_t rows) {
    return aligned(rows * LANES * 4) + aligned(rows * int64_t(sizeof(Best))) +
           aligned(rows * sums_stride(weight) * 4) + work_bytes(weight.format->layout, rows);
}

Scratch divide(uint8_t* at, const lk_weight& weight, int64_t rows) {
    Scratch scratch;
    scratch.out = reinterpret_cast<float*>(at);
    at += aligned(rows * LANES * 4);
    scratch.best = reinterpret_cast<Best*>(at);
    at += aligned(rows * int64_t(sizeof(Best)));
    scratch.sums = reinterpret_cast<int32_t*>(at);
    scratch.work = at + aligned(rows * sums_stride(weight) * 4);
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
    return std::min(most, (even + ROWS_STEP - 1) / ROWS_STEP * ROWS_STEP);
}

Rows group_of(const lk_matmul_args& a, int64_t first, int64_t count, const Scratch& scratch) {
    Rows rows{};
    rows.count = int(count);
    rows.sums = scratch.sums;
    rows.sums_stride = sums_stride(*a.weight);
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

// Bias, then residual, then what is asked for: values, and the best of them.
void finish_row(const lk_matmul_args& a, int64_t row, int64_t column, int lanes, float* values,
                Best* best) {
    if (a.bias != nullptr) {
        for (int i = 0; i < lanes; ++i) values[i] += a.bias[column + i];
    }
    if (a.residual.data != nullptr) {
        const float* residual = a.residual.data + row * a.residual.stride + column;
        for (int i = 0; i < lanes; ++i) values[i] += residual[i];
    }
    if (a.out.data != nullptr) {
        float* out = a.out.data + row * a.out.stride + column;
        for (int i = 0; i < lanes; ++i) out[i] = values[i];
    }
    if (a.argmax == nullptr) return;
    for (int i = 0; i < lanes; ++i) {
        if (is_better(values[i], *best)) *best = {values[i], int32_t(column + i)};
    }
}

// Asks for the cache lines that a tile's results will be written to: rows lie pages apart, and the
// arithmetic takes as long as the memory does.
void fetch_out(const lk_matmul_args& a, int64_t first_row, int64_t count, int64_t column) {
    if (a.out.data == nullptr) return;
    const float* at = a.out.data + first_row * a.out.stride + column;
    for (int64_t r = 0; r < count; ++r) __builtin_prefetch(at + r * a.out.stride, 1);
}

void run_tiles(const lk_matmul_args& a, int64_t first_row, Rows rows,
               const Scratch& scratch, const lk_worker& worker) {
    const lk_weight& weight = *a.weight;
    const int64_t last = weight.tiles * (worker.index + 1) / worker.count;
    for (int64_t tile = weight.tiles * worker.index / worker.count; tile < last; ++tile) {
        rows.next = tile + 1 < last ? weight.tile(tile + 1) : nullptr;
        const int64_t column = tile * LANES;
        fetch_out(a, first_row, rows.count, column);
        weight.kernel->tile(weight, tile, rows, scratch.out, scratch.work);
        const int lanes = int(std::min<int64_t>(LANES, weight.n - column));
        for (int r = 0; r < rows.count; ++r) {
            finish_row(a, first_row + r, column, lanes, scratch.out + r * LANES, scratch.best + r);
        }
    }
}

// All workers' best values of the group, by way of the weight. The second barrier keeps scratch
// alive until everybody has read it.
void reduce_best(const lk_matmul_args& a, int64_t first_row, int count, const Scratch& scratch,
                 lk_worker* worker) {
    a.weight->best[worker->index] = scratch.best;
    lk_barrier(worker);
    for (int r = worker->index; r < count; r += worker->count) {
        Best best{0.0f, -1};
        for (int i = 0; i < worker->count; ++i) {
            const Best& other = a.weight->best[i][r];
            if (other.index >= 0 && is_better(other.value, best)) best = other;
        }
        a.argmax[first_row + r] = best.index;
    }
    lk_barrier(worker);
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
        if (weight.kernel->prepare != nullptr) {
            weight.kernel->prepare(rows, weight.k / BLOCK, scratch.sums);
        }
        for (int r = 0; r < rows.count; ++r) scratch.best[r] = {0.0f, -1};
        run_tiles(a, first, rows, scratch, *worker);
        if (a.argmax != nullptr) reduce_best(a, first, rows.count, scratch, worker);
    }
}
