// Residual streams of hyper-connections: their coefficients, begun, merged and spread.
#include <string.h>

#include "exp.h"
#include "hybrid_kernels.h"
#include "norm_row.h"
#include "partial_vec.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

constexpr int CHUNK = 512;      // columns of a unit of work
constexpr int MIX_ROWS = 4;     // rows that share the reading of a coefficient's weights
constexpr int MOST_COEFFICIENTS = LK_MOST_STREAMS * (2 + LK_MOST_STREAMS);

struct part {
    int64_t row, at;
    int n;
};

part part_at(int64_t unit, int64_t width) {
    const int64_t chunks = (width + CHUNK - 1) / CHUNK, at = unit % chunks * CHUNK;
    return {unit / chunks, at, (int)(width - at < CHUNK ? width - at : CHUNK)};
}

lk_range parts(int64_t rows, int64_t width, const lk_worker* worker) {
    return lk_share(rows * ((width + CHUNK - 1) / CHUNK), worker);
}

// out[r] = weights . x[r]; of each row two chains of fma, over even and odd vectors.
template <int M>
void coefficient(const float* weights, const float* x, int64_t stride, int64_t n, float* out,
                 int64_t out_stride) {
    vf even[M], odd[M];
    for (int r = 0; r < M; r++) even[r] = odd[r] = zero();
    for (int64_t i = 0; i < n; i += 2 * W) {
        const int left = (int)(n - i);
        const vf a = load_some(weights + i, left), b = load_some(weights + i + W, left - W);
        for (int r = 0; r < M; r++) {
            even[r] = fma(a, load_some(x + r * stride + i, left), even[r]);
            odd[r] = fma(b, load_some(x + r * stride + i + W, left - W), odd[r]);
        }
    }
    for (int r = 0; r < M; r++) out[r * out_stride] = sum_lanes(add(even[r], odd[r]));
}

void coefficients(const lk_hyper_mix_args& args, int64_t number, int64_t row, int64_t rows) {
    const float* weights = args.fn + number * args.x.width;
    const float* x = args.x.data + row * args.x.stride;
    float* out = args.out.data + row * args.out.stride + number;
    const int64_t stride = args.x.stride, to = args.out.stride;
    switch (rows) {
        case 1: return coefficient<1>(weights, x, stride, args.x.width, out, to);
        case 2: return coefficient<2>(weights, x, stride, args.x.width, out, to);
        case 3: return coefficient<3>(weights, x, stride, args.x.width, out, to);
        default: return coefficient<4>(weights, x, stride, args.x.width, out, to);
    }
}

// 1 / (1 + e^-x), n values in place; there is room for whole vectors.
void sigmoid_values(float* x, int n) {
    for (int i = 0; i < n; i += W) {
        const vf value = load_some(x + i, n - i);
        store_some(x + i, div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), value)))), n - i);
    }
}

float sum_of(const float* x, int n, int step) {
    float sum = x[0];
    for (int i = 1; i < n; i++) sum += x[i * step];
    return sum;
}

void scale_lines(float* matrix, int n, int line, int step, float hc_eps) {
    for (int i = 0; i < n; i++) {
        const float sum = sum_of(matrix + i * line, n, step) + hc_eps;
        for (int j = 0; j < n; j++) matrix[i * line + j * step] /= sum;
    }
}

// Rows of logits -> a matrix that is doubly stochastic but for hc_eps (Sinkhorn-Knopp).
void balance(float* matrix, int n, int iterations, float hc_eps) {
    for (int row = 0; row < n; row++) {
        float* at = matrix + row * n;
        float largest = at[0];
        for (int i = 1; i < n; i++) largest = at[i] > largest ? at[i] : largest;
        store_some(at, exp(sub(load_some(at, n), set1(largest))), n);
        const float sum = sum_of(at, n, 1);
        for (int i = 0; i < n; i++) at[i] = at[i] / sum + hc_eps;
    }
    scale_lines(matrix, n, 1, n, hc_eps);
    for (int i = 1; i < iterations; i++) {
        scale_lines(matrix, n, n, 1, hc_eps);
        scale_lines(matrix, n, 1, n, hc_eps);
    }
}

void finish_row(const lk_hyper_mix_args& args, int64_t row) {
    const int n = args.streams, width = args.out.width;
    const float* x = args.x.data + row * args.x.stride;
    float* out = args.out.data + row * args.out.stride;
    const float factor = inverse_rms(x, args.x.width, args.eps);
    float mixes[MOST_COEFFICIENTS];
    for (int i = 0; i < width; i++) {
        const float scale = args.scale[i < n ? 0 : i < 2 * n ? 1 : 2];
        mixes[i] = out[i] * factor * scale + args.base[i];
    }
    const int sigmoids = args.head ? n : 2 * n;
    sigmoid_values(mixes, sigmoids);
    for (int i = 0; i < n; i++) mixes[i] += args.hc_eps;
    if (!args.head) {
        for (int i = n; i < 2 * n; i++) mixes[i] *= 2.0f;
        balance(mixes + 2 * n, n, args.iterations, args.hc_eps);
    }
    memcpy(out, mixes, sizeof(float) * (size_t)width);
}

}  // namespace

void hyper_mix(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_hyper_mix_args& args = *(const lk_hyper_mix_args*)record;
    const int64_t rows = lk_row_count(&args.x, batch), width = args.out.width;
    // Rows side by side: a coefficient's weights stay in the cache from one unit to the next.
    const int64_t groups = (rows + MIX_ROWS - 1) / MIX_ROWS;
    const lk_range dots = lk_share(width * groups, worker);
    for (int64_t unit = dots.begin; unit < dots.end; unit++) {
        const int64_t row = unit % groups * MIX_ROWS;
        coefficients(args, unit / groups, row, rows - row < MIX_ROWS ? rows - row : MIX_ROWS);
    }
    lk_barrier(worker);
    const lk_range share = lk_share(rows, worker);
    for (int64_t row = share.begin; row < share.end; row++) finish_row(args, row);
}

void hyper_begin(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_hyper_begin_args& args = *(const lk_hyper_begin_args*)record;
    const lk_range share = lk_share((int64_t)lk_row_count(&args.x, batch) * args.streams, worker);
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int64_t row = unit / args.streams, stream = unit % args.streams;
        memcpy(args.out.data + row * args.out.stride + stream * args.x.width,
               args.x.data + row * args.x.stride, sizeof(float) * (size_t)args.x.width);
    }
}

void hyper_merge(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_hyper_merge_args& args = *(const lk_hyper_merge_args*)record;
    const int64_t width = args.out.width;
    const lk_range share = parts(lk_row_count(&args.x, batch), width, worker);
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const part here = part_at(unit, width);
        const float* x = args.x.data + here.row * args.x.stride + here.at;
        const float* mix = args.mix.data + here.row * args.mix.stride;
        float* out = args.out.data + here.row * args.out.stride + here.at;
        for (int i = 0; i < here.n; i += W) {
            vf sum = mul(load_some(x + i, here.n - i), set1(mix[0]));
            for (int stream = 1; stream < args.streams; stream++) {
                const vf value = load_some(x + stream * width + i, here.n - i);
                sum = fma(value, set1(mix[stream]), sum);
            }
            store_some(out + i, sum, here.n - i);
        }
    }
}

void hyper_spread(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_hyper_spread_args& args = *(const lk_hyper_spread_args*)record;
    const int64_t width = args.y.width;
    const int streams = args.streams;
    const lk_range share = parts(lk_row_count(&args.x, batch), width, worker);
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const part here = part_at(unit, width);
        const float* x = args.x.data + here.row * args.x.stride + here.at;
        const float* y = args.y.data + here.row * args.y.stride + here.at;
        const float* post = args.mix.data + here.row * args.mix.stride + streams;
        const float* comb = post + streams;
        float* out = args.out.data + here.row * args.out.stride + here.at;
        for (int i = 0; i < here.n; i += W) {
            const int left = here.n - i;
            const vf added = load_some(y + i, left);
            vf value[LK_MOST_STREAMS];
            for (int j = 0; j < streams; j++) value[j] = load_some(x + j * width + i, left);
            for (int k = 0; k < streams; k++) {
                vf sum = mul(set1(post[k]), added);
                for (int j = 0; j < streams; j++) sum = fma(set1(comb[j * streams + k]), value[j], sum);
                store_some(out + k * width + i, sum, left);
            }
        }
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
