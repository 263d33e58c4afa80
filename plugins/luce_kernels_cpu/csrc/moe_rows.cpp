// Routing to experts, and what is done with their outputs.
#include "exp.h"
#include "hybrid_kernels.h"
#include "partial_vec.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

constexpr int CHUNK = 256;  // columns of a unit of work

// As torch sorts: NaN is larger than all, equals keep their order.
bool is_above(float a, float b) { return a > b || (a != a && b == b); }

// The numbers of the top_k largest logits, largest first, then the softmax over these logits.
void route_row(const float* logits, int32_t experts, int32_t top_k, float* out) {
    float values[LK_MOST_CANDIDATES + W];
    int32_t numbers[LK_MOST_CANDIDATES];
    int32_t count = 0;
    for (int32_t e = 0; e < experts; e++) {
        if (count == top_k && !is_above(logits[e], values[count - 1])) continue;
        int32_t place = count < top_k ? count++ : top_k - 1;
        for (; place > 0 && is_above(logits[e], values[place - 1]); place--) {
            values[place] = values[place - 1];
            numbers[place] = numbers[place - 1];
        }
        values[place] = logits[e];
        numbers[place] = e;
    }
    const vf largest = set1(values[0]);
    for (int32_t i = 0; i < top_k; i += W) {
        const int n = top_k - i;
        store_some(values + i, exp(sub(load_some(values + i, n), largest)), n);
    }
    float sum = 0.0f;
    for (int32_t i = 0; i < top_k; i++) sum += values[i];
    for (int32_t i = 0; i < top_k; i++) {
        out[i] = (float)numbers[i];
        out[top_k + i] = values[i] / sum;
    }
}

}  // namespace

void moe_route(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_moe_route_args& args = *(const lk_moe_route_args*)record;
    const lk_range share = lk_share(lk_row_count(&args.logits, batch), worker);
    for (int64_t row = share.begin; row < share.end; row++) {
        route_row(args.logits.data + row * args.logits.stride, args.logits.width, args.top_k,
                  args.out.data + row * args.out.stride);
    }
}

void moe_sum(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_moe_sum_args& args = *(const lk_moe_sum_args*)record;
    const int64_t width = args.out.width, chunks = (width + CHUNK - 1) / CHUNK;
    const lk_range share = lk_share(lk_row_count(&args.x, batch) * chunks, worker);
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int64_t row = unit / chunks, at = unit % chunks * CHUNK;
        const int n = (int)(width - at < CHUNK ? width - at : CHUNK);
        const float* x = args.x.data + row * args.x.stride + at;
        const float* weights = args.route.data + row * args.route.stride + args.top_k;
        float* out = args.out.data + row * args.out.stride + at;
        for (int i = 0; i < n; i += W) {
            vf sum = mul(load_some(x + i, n - i), set1(weights[0]));
            for (int32_t place = 1; place < args.top_k; place++)
                sum = fma(load_some(x + place * width + i, n - i), set1(weights[place]), sum);
            store_some(out + i, sum, n - i);
        }
    }
}

void moe_scale(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_moe_scale_args& args = *(const lk_moe_scale_args*)record;
    const int32_t width = args.x.width / args.top_k;
    const lk_range share = lk_share((int64_t)lk_row_count(&args.x, batch) * args.top_k, worker);
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int64_t row = unit / args.top_k, place = unit % args.top_k;
        const float number = args.route.data[row * args.route.stride + place];
        // As in lk_moe_matmul.
        const int32_t expert = number >= 0.0f && number < args.experts ? (int32_t)number : 0;
        const float* x = args.x.data + row * args.x.stride + place * width;
        float* out = args.out.data + row * args.out.stride + place * width;
        const vf scale = set1(args.scale[expert]);
        for (int i = 0; i < width; i += W)
            store_some(out + i, mul(load_some(x + i, width - i), scale), width - i);
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
