// Sums, copies and the best value of rows.
#include <string.h>

#include "best_value.h"
#include "row_kernels.h"
#include "split.h"

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
    const int32_t best = best_value(x, n);
    return __builtin_isfinite(x[best]) ? best : -1;
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
