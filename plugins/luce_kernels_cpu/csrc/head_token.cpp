// lk_head_token: each worker keeps the best of its columns, and the last one to be ready knows the
// best of all. What is best is a total order, so that the order of workers means nothing.
#include <string.h>

#include <limits>

#include "row_kernels.h"
#include "split.h"
#include "tile_rows.h"
#include "vec.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

// The best of a row's columns so far, by lane; the lowest column of equals.
struct Best {
    float value[LANES];
    int32_t column[LANES];
    bool has_nan;
};

// Larger for larger values, and for lower columns of equal values; more for a NaN than for any
// value, and 0 for less than all.
constexpr uint64_t NAN_KEY = ~uint64_t(0);

uint64_t key_of(float value, int32_t column) {
    uint32_t bits;
    value += 0.0f;  // zeros are equal
    memcpy(&bits, &value, sizeof bits);
    bits ^= bits >> 31 ? 0xFFFFFFFFu : 0x80000000u;
    return uint64_t(bits) << 32 | uint32_t(~column);
}

int32_t token_of(uint64_t key) {
    if (key == NAN_KEY) return -1;
    uint32_t bits = uint32_t(key >> 32);
    bits ^= bits >> 31 ? 0x80000000u : 0xFFFFFFFFu;
    float value;
    memcpy(&value, &bits, sizeof value);
    return __builtin_isfinite(value) ? ~int32_t(uint32_t(key)) : -1;
}

void begin(Best* best, int count) {
    for (int r = 0; r < count; ++r) {
        for (int i = 0; i < LANES; ++i) {
            best[r].value[i] = -std::numeric_limits<float>::infinity();
            best[r].column[i] = std::numeric_limits<int32_t>::max();
        }
        best[r].has_nan = false;
    }
}

// Columns `column` .. of a row: `width` of them.
void add(Best* best, const float* values, int32_t column, int width) {
    for (int i = 0; i < LANES; i += W) {
        const vf lowest = set1(-std::numeric_limits<float>::infinity());
        const int left = width - i < 0 ? 0 : width - i;
        const vf v = left < W ? select(first(left), load(values + i), lowest) : load(values + i);
        const vf known = load(best->value + i);
        const vm better = greater(v, known);
        store(best->value + i, select(better, v, known));
        storei(best->column + i, select(better, addi(lanes(), seti(column + i)),
                                        loadi(best->column + i)));
        best->has_nan |= any(is_nan(v));
    }
}

uint64_t best_key(const Best& best) {
    if (best.has_nan) return NAN_KEY;
    uint64_t key = 0;
    for (int i = 0; i < LANES; ++i) {
        const uint64_t other = key_of(best.value[i], best.column[i]);
        if (other > key) key = other;
    }
    return key;
}

void raise(uint64_t* to, uint64_t key) {
    uint64_t known = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (known < key && !__atomic_compare_exchange_n(to, &known, key, true, __ATOMIC_ACQ_REL,
                                                       __ATOMIC_RELAXED)) {
    }
}

// Whether the logits of a row are read.
bool is_read(const lk_head_token_args& a, const lk_batch* batch, int64_t row) {
    return a.logits.data != nullptr && (!batch->logits_read || batch->logits_read[row]);
}

void finish_tile(const lk_head_token_args& a, const lk_batch* batch, int64_t first, int count,
                 int64_t column, int width, float* values, Best* best) {
    if (a.head.bias) add_bias(a.head.bias + column, count, width, values);
    for (int r = 0; r < count; ++r) {
        const float* from = values + r * LANES;
        add(best + r, from, int32_t(column), width);
        if (is_read(a, batch, first + r)) {
            memcpy(a.logits.data + (first + r) * a.logits.stride + column, from,
                   size_t(width) * sizeof(float));
        }
    }
}

void put_tokens(const lk_head_token_args& a, int64_t rows) {
    for (int64_t row = 0; row < rows; ++row) {
        a.tokens[row] = token_of(a.best[row]);
        a.best[row] = 0;
    }
}

}  // namespace

void head_token(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_head_token_args& a = *(const lk_head_token_args*)record;
    const lk_weight& weight = *a.head.weight;
    const int64_t all = lk_row_count(&a.x, batch);
    if (all == 0) return;
    const Product products[] = {{&weight, &a.x, &a.head.xq}};
    const int64_t step = group_rows(products, 1, sizeof(Best), all, worker->scratch_bytes);
    const lk_range tiles = lk_share(weight.tiles, worker);
    for (int64_t first = 0; first < all; first += step) {
        const int count = int(step < all - first ? step : all - first);
        Group<1> group = begin_group(products, 1, first, count, worker->scratch);
        Best* best = reinterpret_cast<Best*>(group.free);
        begin(best, count);
        const int64_t ahead = tiles_ahead(weight, count);
        for (int64_t tile = tiles.begin; tile < tiles.end; tile++) {
            const int64_t column = tile * LANES, left = weight.n - column;
            run_tile(products[0], group.rows[0], tile,
                     tile_before(weight, tile + ahead, tiles.end), group.out, group.work);
            finish_tile(a, batch, first, count, column, int(left < LANES ? left : LANES),
                        group.out, best);
        }
        for (int r = 0; r < count && tiles.begin < tiles.end; ++r) {
            raise(a.best + first + r, best_key(best[r]));
        }
    }
    if (__atomic_add_fetch(a.arrived, 1, __ATOMIC_ACQ_REL) < worker->count) return;
    put_tokens(a, all);
    __atomic_store_n(a.arrived, 0, __ATOMIC_RELAXED);
}

}  // namespace LK_ISA_NS
}  // namespace lk
