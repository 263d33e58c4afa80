// Sums, copies and the best value of rows.
#include <string.h>

#include "row_kernels.h"
#include "split.h"
#include "vec.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

constexpr int CHUNK = 256;  // columns of a unit of work

void add_values(const float* a, const float* b, int n, float* out) {
    int i = 0;
    for (; i + W <= n; i += W) store(out + i, add(load(a + i), load(b + i)));
    if (i < n) store_first(out + i, add(load_first(a + i, n - i), load_first(b + i, n - i)), n - i);
}

// The lowest index of the largest value; -1 if that is infinite, or if a value is NaN.
int32_t greedy_token(const float* x, int n) {
    const vf lowest = set1(-__builtin_inff());
    vf best = lowest;
    vi best_at = lanes(), at = lanes();
    vm strange = is_nan(best);
    for (int i = 0; i < n; i += W, at = addi(at, seti(W))) {
        const vf value = n - i < W ? select(first(n - i), load_first(x + i, n - i), lowest)
                                   : load(x + i);
        const vm better = greater(value, best);
        best = select(better, value, best);
        best_at = select(better, at, best_at);
        strange = either(strange, is_nan(value));
    }
    if (any(strange)) return -1;
    float values[W];
    int32_t places[W];
    store(values, best);
    storei(places, best_at);
    int top = 0;
    for (int i = 1; i < W; i++) {
        if (values[i] > values[top] || (values[i] == values[top] && places[i] < places[top])) {
            top = i;
        }
    }
    return __builtin_isfinite(values[top]) ? places[top] : -1;
}

}  // namespace

void add_rows(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_add_args& args = *(const lk_add_args*)record;
    const int64_t chunks = (args.a.width + CHUNK - 1) / CHUNK;
    const lk_range share = lk_share(lk_row_count(&args.a, batch) * chunks, worker);
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int64_t row = unit / chunks, at = unit % chunks * CHUNK;
        const int n = (int)(args.a.width - at < CHUNK ? args.a.width - at : CHUNK);
        add_values(args.a.data + row * args.a.stride + at, args.b.data + row * args.b.stride + at,
                   n, args.out.data + row * args.out.stride + at);
    }
}

void gather_rows(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_gather_args& args = *(const lk_gather_args*)record;
    const lk_range share = lk_share(batch->logits, worker);
    for (int64_t row = share.begin; row < share.end; row++) {
        memcpy(args.out.data + row * args.out.stride,
               args.x.data + batch->logit_rows[row] * args.x.stride,
               (size_t)args.x.width * sizeof(float));
    }
}

void greedy_token_rows(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_greedy_token_args& args = *(const lk_greedy_token_args*)record;
    const lk_range share = lk_share(lk_row_count(&args.x, batch), worker);
    for (int64_t row = share.begin; row < share.end; row++)
        args.out[row] = greedy_token(args.x.data + row * args.x.stride, args.x.width);
}

}  // namespace LK_ISA_NS
}  // namespace lk
