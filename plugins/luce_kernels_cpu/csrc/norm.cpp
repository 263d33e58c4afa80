// Root-mean-square norm of rows, or of each head of a row.
#include "norm_row.h"
#include "quantize_row.h"
#include "row_kernels.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

// Values normed at a time where the float row itself is not wanted.
constexpr int CHUNK = 256;

// One row with its int8 form, and its floats if `out` is not NULL.
void quantized_row(const lk_norm_args& args, const float* x, float* out, int64_t row) {
    float chunk[CHUNK];
    for (int start = 0; start < args.x.width; start += args.group) {
        const float scale = inverse_rms(x + start, args.group, args.eps);
        for (int i = 0; i < args.group; i += CHUNK) {
            const int n = args.group - i < CHUNK ? args.group - i : CHUNK, at = start + i;
            float* values = out ? out + at : chunk;
            scale_values(x + at, args.weight + i, scale, n, values);
            quantize_values(args.quantized, values, row, at, n);
        }
    }
}

}  // namespace

void norm(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_norm_args& args = *(const lk_norm_args*)record;
    const int64_t rows = lk_row_count(&args.x, batch);
    if (args.quantized.q) {
        const lk_range share = lk_share(rows, worker);
        for (int64_t row = share.begin; row < share.end; row++) {
            float* out = args.out.data ? args.out.data + row * args.out.stride : nullptr;
            quantized_row(args, args.x.data + row * args.x.stride, out, row);
        }
        return;
    }
    const int64_t groups = args.x.width / args.group;
    const lk_range share = lk_share(rows * groups, worker);
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int64_t row = unit / groups, at = unit % groups * args.group;
        const float* x = args.x.data + row * args.x.stride + at;
        scale_values(x, args.weight, inverse_rms(x, args.group, args.eps), args.group,
                     args.out.data + row * args.out.stride + at);
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
