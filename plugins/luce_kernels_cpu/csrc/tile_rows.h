// Rows of a step that weights multiply a tile at a time, in groups that stay in the cache: what
// lk_matmul has in common with the records that go on with a product. Nothing here has a linkage,
// since sources of several instruction sets include it.
#ifndef LUCE_TILE_ROWS_H
#define LUCE_TILE_ROWS_H

#include <cstdint>
#include <cstdlib>

#include "ahead.h"
#include "formats.h"
#include "kernels.h"

namespace lk {
namespace {

constexpr int MOST_GROUP_ROWS = 64;
constexpr int64_t SCRATCH_ALIGN = 64;

// A weight, and the rows that it multiplies in the form that it takes.
struct Product {
    const lk_weight* weight;
    const lk_rows* x;
    const lk_quantized* xq;
};

// A group of rows in a worker's scratch.
template <int N>
struct Group {
    Rows rows[N];   // by product
    float* out;     // of the tiles that are kept at a time, `out_stride` floats each
    int64_t out_stride;
    uint8_t* work;  // for Method::tile
    uint8_t* free;  // behind all that
};

static inline int64_t aligned(int64_t bytes) {
    return (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
}
static inline int64_t sums_stride(const lk_weight& weight, int64_t rows) {
    return weight.kernel->method(rows).sums_per_block * weight.blocks();
}
static inline int64_t sums_bytes(const lk_weight& weight, int64_t rows) {
    return aligned(rows_of_sums(rows) * sums_stride(weight, rows) * 4);
}
static inline int64_t tile_out_bytes(int64_t rows) {
    return aligned(whole_steps(rows) * LANES * 4);
}

template <int N>
static inline int64_t group_bytes(const Product (&products)[N], int tiles, int64_t rows) {
    int64_t work = 0, all = tiles * tile_out_bytes(rows);
    for (const Product& product : products) {
        const int64_t own = work_bytes(product.weight->format->layout, rows);
        work = work > own ? work : own;
        all += sums_bytes(*product.weight, rows);
    }
    return all + aligned(work);
}

// Even groups of whole ROWS_STEP rows (the last may be less) that fit the scratch; the same for
// every worker of a pool. `extra` bytes a row are for what else is kept there.
template <int N>
static inline int64_t group_rows(const Product (&products)[N], int tiles, int64_t extra,
                                 int64_t rows, int64_t scratch) {
    const auto fits = [&](int64_t most) {
        return group_bytes(products, tiles, most) + aligned(most * extra) <= scratch;
    };
    int64_t most = MOST_GROUP_ROWS;
    while (most > ROWS_STEP && !fits(most)) most -= ROWS_STEP;
    while (most > 1 && !fits(most)) --most;
    if (!fits(most)) std::abort();  // see lk_matmul_args
    const int64_t groups = (rows + most - 1) / most;
    const int64_t even = whole_steps((rows + groups - 1) / groups);
    return most < even ? most : even;
}

static inline Rows rows_of(const Product& product, int64_t first, int64_t count) {
    Rows rows{};
    rows.count = int(count);
    rows.k = product.weight->k;
    rows.sums_stride = sums_stride(*product.weight, count);
    if (product.weight->format->layout == Layout::INT8) {
        const lk_quantized& xq = *product.xq;
        rows.q = xq.q + first * xq.q_stride;
        rows.d = xq.d + first * xq.d_stride;
        rows.s = xq.s + first * xq.d_stride;
        rows.q_stride = xq.q_stride;
        rows.d_stride = xq.d_stride;
    } else {
        rows.x = product.x->data + first * product.x->stride;
        rows.x_stride = product.x->stride;
    }
    return rows;
}

// Whether what `prepare` makes of a group for one product serves the other too.
static inline bool same_sums(const Product& a, const Rows& of_a, const Product& b,
                             const Rows& of_b) {
    return a.weight->k == b.weight->k && of_a.q == of_b.q && of_a.x == of_b.x &&
           a.weight->kernel->method(of_a.count).prepare ==
               b.weight->kernel->method(of_b.count).prepare;
}

// Rows first .. first + count - 1, ready for tiles.
template <int N>
static inline Group<N> begin_group(const Product (&products)[N], int tiles, int64_t first,
                                   int64_t count, uint8_t* scratch) {
    Group<N> group{};
    group.out = reinterpret_cast<float*>(scratch);
    group.out_stride = tile_out_bytes(count) / 4;
    uint8_t* at = scratch + tiles * tile_out_bytes(count);
    int64_t work = 0;
    for (int i = 0; i < N; ++i) {
        const lk_weight& weight = *products[i].weight;
        Rows& rows = group.rows[i];
        rows = rows_of(products[i], first, count);
        const int64_t own = work_bytes(weight.format->layout, count);
        work = work > own ? work : own;
        const auto prepare = weight.kernel->method(count).prepare;
        if (prepare == nullptr) continue;
        for (int j = 0; j < i && rows.sums == nullptr; ++j) {
            if (same_sums(products[i], rows, products[j], group.rows[j])) {
                rows.sums = group.rows[j].sums;
            }
        }
        if (rows.sums != nullptr) continue;
        int32_t* sums = reinterpret_cast<int32_t*>(at);
        at += sums_bytes(weight, count);
        rows.sums = sums;
        prepare(rows, weight.blocks(), sums);
    }
    group.work = at;
    group.free = at + aligned(work);
    return group;
}

// One tile of a group's rows into out [rows][16]. `next` is a tile to ask for, see ahead.h.
static inline void run_tile(const Product& product, Rows& rows, int64_t tile, const uint8_t* next,
                            float* out, uint8_t* work) {
    rows.next = next;
    product.weight->kernel->method(rows.count).tile(*product.weight, tile, rows, out, work);
}

// Asks for the cache lines that a tile's results will be written to: rows lie pages apart, and the
// arithmetic takes as long as the memory does.
static inline void fetch_out(const lk_rows& out, int64_t first, int64_t count, int64_t column) {
    const float* at = out.data + first * out.stride + column;
    for (int64_t r = 0; r < count; ++r) __builtin_prefetch(at + r * out.stride, 1);
}

static inline __attribute__((always_inline)) void add_bias(const float* bias, int count, int lanes,
                                                           float* values) {
    for (int r = 0; r < count; ++r) {
        for (int i = 0; i < lanes; ++i) values[r * LANES + i] += bias[i];
    }
}

}  // namespace
}  // namespace lk

#endif
