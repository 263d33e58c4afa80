// Which experts rows go to, and with what weights.
#include <math.h>

#include "exp.h"
#include "hybrid_kernels.h"
#include "partial_vec.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

constexpr int MOST_EXPERTS = LK_MOST_EXPERTS;

// As torch sorts: NaN is larger than all, equals keep their order.
bool is_above(float a, float b) { return a > b || (a != a && b == b); }

// The numbers of the top_k largest values, largest first.
void choose(const float* values, int32_t count, int32_t top_k, int32_t* numbers) {
    int32_t known = 0;
    for (int32_t e = 0; e < count; e++) {
        if (known == top_k && !is_above(values[e], values[numbers[known - 1]])) continue;
        int32_t place = known < top_k ? known++ : top_k - 1;
        for (; place > 0 && is_above(values[e], values[numbers[place - 1]]); place--)
            numbers[place] = numbers[place - 1];
        numbers[place] = e;
    }
}

// In place: the softmax of values of which the first is the largest, times `scale`.
void softmax_weights(float* values, int32_t count, float scale) {
    const vf largest = set1(values[0]);
    for (int32_t i = 0; i < count; i += W) {
        const int n = count - i;
        store_some(values + i, exp(sub(load_some(values + i, n), largest)), n);
    }
    float sum = 0.0f;
    for (int32_t i = 0; i < count; i++) sum += values[i];
    for (int32_t i = 0; i < count; i++) values[i] = values[i] / sum * scale;
}

// sqrt(log(1 + e^x)); beyond 20 the logarithm is x itself in float32.
float sqrt_softplus(float x) { return sqrtf(x > 20.0f ? x : log1pf(expf(x))); }

// In place: each value's share of their sum, in order, times `scale`.
void share_weights(float* values, int32_t count, float scale) {
    float sum = values[0];
    for (int32_t i = 1; i < count; i++) sum += values[i];
    for (int32_t i = 0; i < count; i++) values[i] = values[i] / (sum + 1e-20f) * scale;
}

void route_row(const lk_moe_route_args& args, const float* logits, float* out) {
    const int32_t experts = args.logits.width, top_k = args.top_k;
    const bool is_softplus = args.scoring == LK_SQRT_SOFTPLUS;
    int32_t numbers[LK_MOST_CANDIDATES];
    float scores[MOST_EXPERTS], ranked[MOST_EXPERTS];
    const float* by = logits;
    if (is_softplus) {
        for (int32_t e = 0; e < experts; e++) scores[e] = sqrt_softplus(logits[e]);
        by = scores;
        if (args.bias) {
            for (int32_t e = 0; e < experts; e++) ranked[e] = scores[e] + args.bias[e];
            by = ranked;
        }
    }
    choose(by, experts, top_k, numbers);
    const float* weighed = is_softplus ? scores : logits;
    for (int32_t i = 0; i < top_k; i++) {
        out[i] = (float)numbers[i];
        out[top_k + i] = weighed[numbers[i]];
    }
    if (is_softplus) {
        share_weights(out + top_k, top_k, args.scale);
    } else {
        softmax_weights(out + top_k, top_k, args.scale);
    }
}

}  // namespace

void moe_route(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_moe_route_args& args = *(const lk_moe_route_args*)record;
    const lk_range share = lk_share(lk_row_count(&args.logits, batch), worker);
    for (int64_t row = share.begin; row < share.end; row++) {
        route_row(args, args.logits.data + row * args.logits.stride,
                  args.out.data + row * args.out.stride);
    }
}

void route_by_token(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_route_by_token_args& args = *(const lk_route_by_token_args*)record;
    const lk_range share = lk_share(batch->rows, worker);
    for (int64_t row = share.begin; row < share.end; row++) {
        const float* named = args.table + (int64_t)batch->token_ids[row] * args.top_k;
        const float* logits = args.logits.data + row * args.logits.stride;
        float* out = args.out.data + row * args.out.stride;
        for (int32_t i = 0; i < args.top_k; i++) {
            // A table that names no expert is refused when it is loaded.
            const int32_t expert =
                named[i] >= 0.0f && named[i] < args.logits.width ? (int32_t)named[i] : 0;
            out[i] = named[i];
            out[args.top_k + i] = sqrt_softplus(logits[expert]);
        }
        share_weights(out + args.top_k, args.top_k, args.scale);
    }
}

void group_route(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_group_route_args& args = *(const lk_group_route_args*)record;
    const lk_range share = lk_share(batch->rows, worker);
    for (int64_t row = share.begin; row < share.end; row++) {
        float* out = args.out.data + row * args.out.stride;
        for (int32_t group = 0; group < args.groups; group++) {
            out[group] = (float)group;
            out[args.groups + group] = 1.0f;
        }
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
