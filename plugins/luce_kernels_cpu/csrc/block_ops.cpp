// What a block draft does beside projections: rows that outlive their step, its convolution, writes
// of its rings.
#include <string.h>

#include "hybrid_kernels.h"
#include "partial_vec.h"
#include "row_kernels.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

// One group of values of a row that is number `place` of its segment.
void conv_group(const lk_dynamic_conv_args& args, int64_t row, int32_t place, int64_t group) {
    const int64_t width = args.x.width, groups = width / args.group, at = group * args.group;
    const float* x = args.x.data + row * args.x.stride + at;
    const int64_t side = (int64_t)args.side * args.taps;
    const float* base = args.base + side * width + at;
    const float* change = args.delta.data + row * args.delta.stride + side * groups + group;
    float* out = args.out.data + row * args.out.stride + at;
    const int32_t taps = place + 1 < args.taps ? place + 1 : args.taps;
    for (int i = 0; i < args.group; i += W) {
        const int n = args.group - i;
        vf sum = zero();
        for (int32_t tap = 0; tap < taps; tap++) {
            const vf kernel = add(load_some(base + tap * width + i, n), set1(change[tap * groups]));
            sum = fma(kernel, load_some(x - tap * args.x.stride + i, n), sum);
        }
        store_some(out + i, sum, n);
    }
}

}  // namespace

void dynamic_conv(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_dynamic_conv_args& args = *(const lk_dynamic_conv_args*)record;
    const int64_t groups = args.x.width / args.group;
    const lk_range share = lk_share(batch->rows * groups, worker);
    int32_t segment = 0;
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int64_t row = unit / groups;
        while (batch->cu_seqlens[segment + 1] <= row) segment++;
        conv_group(args, row, (int32_t)(row - batch->cu_seqlens[segment]), unit % groups);
    }
}

void put_rows(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_put_rows_args& args = *(const lk_put_rows_args*)record;
    const lk_range share = lk_share(batch->rows, worker);
    for (int64_t row = share.begin; row < share.end; row++) {
        float* place = args.at.buffer + (int64_t)args.at.places[row] * args.at.width;
        memcpy(place + args.column, args.x.data + row * args.x.stride,
               (size_t)args.x.width * sizeof(float));
    }
}

void take_rows(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_take_rows_args& args = *(const lk_take_rows_args*)record;
    const lk_range share = lk_share(batch->rows, worker);
    for (int64_t row = share.begin; row < share.end; row++) {
        memcpy(args.out.data + row * args.out.stride,
               args.at.buffer + (int64_t)args.at.places[row] * args.at.width,
               (size_t)args.out.width * sizeof(float));
    }
}

void ring_write(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_ring_write_args& args = *(const lk_ring_write_args*)record;
    lk_batch at_rings = *batch;
    at_rings.kv_rows = args.ring_rows;
    kv_write(&args.write, &at_rings, worker);
}

}  // namespace LK_ISA_NS
}  // namespace lk
