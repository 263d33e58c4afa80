// Gates after attention and the delta rule, and rows side by side or scaled.
#include <string.h>

#include "exp.h"
#include "hybrid_kernels.h"
#include "norm_row.h"
#include "partial_vec.h"
#include "quantize_row.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

constexpr int CHUNK = 256;  // columns of a unit of work: whole quant blocks

vf sigmoid(vf x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), x)))); }

}  // namespace

void gated_norm(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_gated_norm_args& args = *(const lk_gated_norm_args*)record;
    const int64_t groups = args.x.width / args.group;
    const lk_range share = lk_share(lk_row_count(&args.x, batch) * groups, worker);
    float chunk[CHUNK];
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int64_t row = unit / groups, first = unit % groups * args.group;
        const float* x = args.x.data + row * args.x.stride + first;
        const float* z = args.z.data + row * args.z.stride + first;
        float* out = args.out.data ? args.out.data + row * args.out.stride + first : nullptr;
        const vf scale = set1(inverse_rms(x, args.group, args.eps));
        for (int at = 0; at < args.group; at += CHUNK) {
            const int n = args.group - at < CHUNK ? args.group - at : CHUNK;
            float* to = out ? out + at : chunk;
            for (int i = 0; i < n; i += W) {
                const vf gate = load_some(z + at + i, n - i);
                const vf normed = mul(mul(load_some(x + at + i, n - i), scale),
                                      load_some(args.weight + at + i, n - i));
                store_some(to + i, mul(normed, mul(gate, sigmoid(gate))), n - i);
            }
            if (args.quantized.q) quantize_values(args.quantized, to, row, first + at, n);
        }
    }
}

void sigmoid_gate(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_sigmoid_gate_args& args = *(const lk_sigmoid_gate_args*)record;
    const int64_t chunks = (args.x.width + CHUNK - 1) / CHUNK;
    const lk_range share = lk_share(lk_row_count(&args.x, batch) * chunks, worker);
    float chunk[CHUNK];
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int64_t row = unit / chunks, at = unit % chunks * CHUNK;
        const int n = (int)(args.x.width - at < CHUNK ? args.x.width - at : CHUNK);
        const float* x = args.x.data + row * args.x.stride + at;
        const float* gate = args.gate.data + row * args.gate.stride;
        const bool shared = args.gate.width == 1;
        float* out = args.out.data ? args.out.data + row * args.out.stride + at : chunk;
        for (int i = 0; i < n; i += W) {
            const vf by = shared ? set1(*gate) : load_some(gate + at + i, n - i);
            store_some(out + i, mul(load_some(x + i, n - i), sigmoid(by)), n - i);
        }
        if (args.quantized.q) quantize_values(args.quantized, out, row, at, n);
    }
}

void affine(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_affine_args& args = *(const lk_affine_args*)record;
    const int64_t chunks = (args.x.width + CHUNK - 1) / CHUNK;
    const lk_range share = lk_share(lk_row_count(&args.x, batch) * chunks, worker);
    const vf scale = set1(*args.scale);
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int64_t row = unit / chunks, at = unit % chunks * CHUNK;
        const int n = (int)(args.x.width - at < CHUNK ? args.x.width - at : CHUNK);
        const float* x = args.x.data + row * args.x.stride + at;
        float* out = args.out.data + row * args.out.stride + at;
        for (int i = 0; i < n; i += W) {
            vf y = mul(load_some(x + i, n - i), scale);
            if (args.bias) y = add(y, load_some(args.bias + at + i, n - i));
            store_some(out + i, y, n - i);
        }
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
