// lk_moe_matmul: rows are sorted by expert, so that a tile of an expert is read once for all the
// rows that go to it; each worker has some tiles of every expert, or, where those are few, some of
// the experts' tiles in a line.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ahead.h"
#include "formats.h"
#include "kernels.h"

namespace lk {
namespace {

constexpr int64_t MOST_PAIRS = 1 << 15;  // of a row and an expert, that are sorted at once
constexpr int64_t ALIGN = 64;

int64_t aligned(int64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

// Pairs of rows from `first` on, numbered row * top_k + place, by expert.
struct Sorted {
    int64_t first;
    int32_t* starts;  // [experts + 1]
    int32_t* pairs;
};

// A number that no router makes must not lead outside the weight.
int32_t expert_of(const lk_moe_matmul_args& a, int64_t row, int32_t place) {
    const float number = a.route.data[row * a.route.stride + place];
    return number >= 0.0f && number < float(a.experts) ? int32_t(number) : 0;
}

Sorted sort_pairs(const lk_moe_matmul_args& a, int64_t first, int64_t count, uint8_t*& scratch) {
    Sorted sorted{first, reinterpret_cast<int32_t*>(scratch), nullptr};
    scratch += aligned((a.experts + 2) * int64_t(sizeof(int32_t)));
    sorted.pairs = reinterpret_cast<int32_t*>(scratch);
    scratch += aligned(count * a.top_k * int64_t(sizeof(int32_t)));
    // One place further while pairs are dealt out: starts[e + 1] grows up to where e + 1 begins.
    int32_t* next = sorted.starts + 1;
    std::memset(sorted.starts, 0, size_t(a.experts + 2) * sizeof(int32_t));
    for (int64_t row = 0; row < count; ++row) {
        for (int32_t place = 0; place < a.top_k; ++place) ++next[expert_of(a, first + row, place) + 1];
    }
    for (int32_t e = 0; e < a.experts; ++e) next[e + 1] += next[e];
    for (int64_t row = 0; row < count; ++row) {
        for (int32_t place = 0; place < a.top_k; ++place) {
            sorted.pairs[next[expert_of(a, first + row, place)]++] =
                int32_t(row * a.top_k + place);
        }
    }
    return sorted;
}

struct Group {
    const lk_moe_matmul_args* args;
    int64_t first;         // row of pair 0
    const int32_t* pairs;  // of one expert
    int count;

    int64_t row(int i) const { return first + pairs[i] / args->top_k; }
    int place(int i) const { return pairs[i] % args->top_k; }
    int input(int i) const { return args->inputs == 1 ? 0 : place(i); }
};

int64_t input_bytes(const lk_weight& weight) {
    return weight.format->layout == Layout::INT8 ? aligned(weight.k) + 2 * aligned(weight.k / 8)
                                                 : aligned(weight.k * 4);
}

int64_t sums_stride(const lk_weight& weight, int count) {
    return weight.kernel->method(count).sums_per_block * weight.blocks();
}

int64_t group_bytes(const lk_weight& weight, int count) {
    return aligned(whole_steps(count) * LANES * 4) +
           aligned(rows_of_sums(count) * sums_stride(weight, count) * 4) +
           work_bytes(weight.format->layout, count) + count * input_bytes(weight) + 4 * ALIGN;
}

// The largest group that was asked for and fits the scratch.
int most_rows(const lk_moe_matmul_args& a, int64_t scratch) {
    const lk_weight& weight = *a.weight;
    int most = a.group_rows == 0 ? LK_MOST_GROUP_ROWS : a.group_rows;
    while (most > 1 && group_bytes(weight, most) > scratch) most /= 2;
    if (group_bytes(weight, most) > scratch) std::abort();  // see lk_matmul_args
    return most;
}

// The group's inputs side by side; of a single row as they lie.
Rows gather(const lk_weight& weight, const Group& group, uint8_t* to) {
    const lk_moe_matmul_args& a = *group.args;
    const int64_t k = weight.k, blocks = k / BLOCK;
    Rows rows{};
    rows.count = group.count;
    rows.k = weight.k;
    if (weight.format->layout != Layout::INT8) {
        rows.x_stride = k;
        float* x = reinterpret_cast<float*>(to);
        for (int i = 0; i < group.count; ++i) {
            const float* from = a.x.data + group.row(i) * a.x.stride + group.input(i) * k;
            if (group.count == 1) {
                rows.x = from;
                return rows;
            }
            std::memcpy(x + i * k, from, size_t(k) * sizeof(float));
        }
        rows.x = x;
        return rows;
    }
    rows.q_stride = k;
    rows.d_stride = blocks;
    const int64_t scales = k / weight.format->int8_block();
    const auto source = [&](int i) {
        const int64_t row = group.row(i), at = group.input(i);
        const float* s = a.xq.s + row * a.xq.d_stride + at * blocks;
        return Rows{1, a.xq.q + row * a.xq.q_stride + at * k,
                    a.xq.d + row * a.xq.d_stride + at * scales, s,
                    nullptr, nullptr, 0, 0, 0, 0, nullptr, 0};
    };
    if (group.count == 1) {
        const Rows only = source(0);
        rows.q = only.q;
        rows.d = only.d;
        rows.s = only.s;
        return rows;
    }
    int8_t* q = reinterpret_cast<int8_t*>(to);
    float* d = reinterpret_cast<float*>(to + aligned(group.count * k));
    float* s = d + aligned(group.count * blocks * 4) / 4;
    for (int i = 0; i < group.count; ++i) {
        const Rows from = source(i);
        std::memcpy(q + i * k, from.q, size_t(k));
        std::memcpy(d + i * blocks, from.d, size_t(scales) * sizeof(float));
        std::memcpy(s + i * blocks, from.s, size_t(blocks) * sizeof(float));
    }
    rows.q = q;
    rows.d = d;
    rows.s = s;
    return rows;
}

// Tiles begin .. end - 1 of an expert, whose first is tile `base` of the weight.
void run_group(const Group& group, int64_t base, int64_t begin, int64_t end, uint8_t* scratch) {
    const lk_moe_matmul_args& a = *group.args;
    const lk_weight& weight = *a.weight;
    const Method& method = weight.kernel->method(group.count);
    float* out = reinterpret_cast<float*>(scratch);
    scratch += aligned(whole_steps(group.count) * LANES * 4);
    int32_t* sums = reinterpret_cast<int32_t*>(scratch);
    scratch += aligned(rows_of_sums(group.count) * sums_stride(weight, group.count) * 4);
    uint8_t* work = scratch;
    scratch += aligned(work_bytes(weight.format->layout, group.count));
    Rows rows = gather(weight, group, scratch);
    rows.sums = sums;
    rows.sums_stride = sums_stride(weight, group.count);
    if (method.prepare != nullptr) method.prepare(rows, weight.blocks(), sums);
    const int64_t ahead = tiles_ahead(weight, group.count);
    for (int64_t tile = begin; tile < std::min(begin + ahead, end); ++tile) {
        fetch_tile(weight, base + tile);
    }
    for (int64_t tile = begin; tile < end; ++tile) {
        rows.next = tile_before(weight, base + tile + ahead, base + end);
        method.tile(weight, base + tile, rows, out, work);
        const int64_t column = tile * LANES;
        const size_t lanes = size_t(std::min<int64_t>(LANES, a.n - column));
        for (int i = 0; i < group.count; ++i) {
            float* to = a.out.data + group.row(i) * a.out.stride + int64_t(group.place(i)) * a.n;
            std::memcpy(to + column, out + i * LANES, lanes * sizeof(float));
        }
    }
}

void run_pairs(const lk_moe_matmul_args& a, const Sorted& sorted, uint8_t* scratch,
               int64_t scratch_bytes, const lk_worker& worker) {
    const int64_t tiles = (a.n + LANES - 1) / LANES;
    const int most = most_rows(a, scratch_bytes);
    int64_t active = 0;
    for (int32_t e = 0; e < a.experts; ++e) active += sorted.starts[e + 1] > sorted.starts[e];
    const bool in_line = tiles < 4 * worker.count;
    const int64_t all = in_line ? active * tiles : tiles;
    const int64_t begin = all * worker.index / worker.count;
    const int64_t end = all * (worker.index + 1) / worker.count;
    int64_t passed = 0;  // tiles of the experts before this one, in line
    for (int32_t e = 0; e < a.experts; ++e) {
        const int32_t first = sorted.starts[e], stop = sorted.starts[e + 1];
        if (first == stop) continue;
        const int64_t from = std::max<int64_t>(begin - passed, 0);
        const int64_t to = std::min(end - passed, tiles);
        if (in_line) passed += tiles;
        for (int32_t at = first; from < to && at < stop; at += most) {
            const Group group{&a, sorted.first, sorted.pairs + at, std::min(most, stop - at)};
            run_group(group, e * tiles, from, to, scratch);
        }
    }
}

}  // namespace
}  // namespace lk

void lk_moe_matmul(const void* args, const lk_batch* batch, lk_worker* worker) {
    using namespace lk;
    const auto& a = *static_cast<const lk_moe_matmul_args*>(args);
    const int64_t rows = lk_row_count(&a.route, batch);
    const int64_t step = std::max<int64_t>(1, MOST_PAIRS / a.top_k);
    for (int64_t first = 0; first < rows; first += step) {
        uint8_t* scratch = worker->scratch;
        const Sorted sorted = sort_pairs(a, first, std::min(step, rows - first), scratch);
        run_pairs(a, sorted, scratch, worker->scratch_bytes - (scratch - worker->scratch), *worker);
    }
}
