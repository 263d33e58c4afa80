// What is done with the outputs of experts.
#include "hybrid_kernels.h"
#include "partial_vec.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

constexpr int CHUNK = 256;  // columns of a unit of work

}  // namespace

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
