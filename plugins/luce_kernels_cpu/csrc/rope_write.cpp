// What lies between the projections of a layer and its attention, in one pass over the rows.
#include <stdlib.h>

#include "cache_encode.h"
#include "norm_row.h"
#include "rope_row.h"
#include "row_kernels.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

// One head of a row, normed if there is a weight, and turned. `out` may not be `x`.
void turn_normed(const lk_rope_args& rope, const float* weight, float eps, const lk_batch* batch,
                 int64_t row, int64_t head, row_turns* known, float* out) {
    const float* x = rope.x.data + row * rope.x.stride + head * rope.dim;
    if (weight != nullptr) {
        scale_values(x, weight, inverse_rms(x, rope.dim, eps), rope.dim, out);
        x = out;
    }
    rope_head(rope, batch, row, known, x, out);
}

}  // namespace

void rope_write(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_rope_write_args& args = *(const lk_rope_write_args*)record;
    row_turns known;
    const lk_range share = lk_share((int64_t)batch->rows * args.q.heads, worker);
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int64_t row = unit / args.q.heads, head = unit % args.q.heads;
        turn_normed(args.q, args.q_norm, args.q_eps, batch, row, head, &known,
                    args.q.out.data + row * args.q.out.stride + head * args.q.dim);
    }

    float* turned = (float*)worker->scratch;
    // What lk_rope_write_args asks for.
    if (worker->scratch_bytes < (int64_t)sizeof(float) * args.k.dim) abort();
    known.row = -1;
    each_cache_head(args.k_cache, batch, worker, [&](int64_t row, int32_t head) {
        turn_normed(args.k, args.k_norm, args.k_eps, batch, row, head, &known, turned);
        encode_row(args.k_cache, turned, cache_row(&args.k_cache, batch->kv_rows[row], head));
        encode_head(args.v_cache, args.v, batch, row, head);
    });
}

}  // namespace LK_ISA_NS
}  // namespace lk
