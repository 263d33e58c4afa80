// Depthwise causal convolution over each slot's history, then silu; and its replay.
#include <string.h>

#include "exp.h"
#include "hybrid_kernels.h"
#include "partial_vec.h"
#include "slot_segments.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

constexpr int MOST_COLUMNS = 256;  // of a unit of work

// Columns of a unit: few enough that every worker gets some, whole cache lines.
int64_t unit_columns(int32_t channels, const lk_worker* worker) {
    const int64_t even = (channels / (4 * worker->count) + 15) / 16 * 16;
    return even < 16 ? 16 : even > MOST_COLUMNS ? MOST_COLUMNS : even;
}

vf silu(vf x) { return div(x, add(set1(1.0f), exp(sub(zero(), x)))); }

// A slot's part of a state or log, from a column on: rows `channels` apart.
struct history {
    float* state;
    float* log;
};

history slot_history(const lk_causal_conv1d_args& args, int32_t slot, int64_t column) {
    const int64_t channels = args.channels;
    return {args.state + slot * (args.kernel - 1) * channels + column,
            args.log + slot * args.slots.log_rows * channels + column};
}

// One row of a segment: the sum over taps in order, each of an earlier row or of the history.
void conv_row(const lk_causal_conv1d_args& args, const float* state, const float* x, int32_t row,
              int64_t column, int n, float* out) {
    const int32_t before = args.kernel - 1;
    for (int i = 0; i < n; i += W) {
        vf sum = zero();
        for (int32_t tap = 0; tap < args.kernel; tap++) {
            const int32_t at = row + tap - before;
            const float* from = at < 0 ? state + (int64_t)(at + before) * args.channels
                                       : x + at * args.x.stride;
            const float* weight = args.taps + (int64_t)tap * args.channels + column;
            sum = fma(load_some(from + i, n - i), load_some(weight + i, n - i), sum);
        }
        store_some(out + i, silu(sum), n - i);
    }
}

// Moves a state on over `count` rows: what it held slides out at the front.
void slide(float* state, int32_t before, int64_t channels, const float* rows, int64_t stride,
           int32_t count, int n) {
    for (int32_t i = 0; i < before; i++) {
        const int32_t from = i + count;
        const float* row = from < before ? state + from * channels : rows + (from - before) * stride;
        memcpy(state + i * channels, row, (size_t)n * sizeof(float));
    }
}

}  // namespace

void causal_conv1d(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_causal_conv1d_args& args = *(const lk_causal_conv1d_args*)record;
    const int64_t columns = unit_columns(args.channels, worker);
    const lk_range share = lk_share((args.channels + columns - 1) / columns, worker);
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int64_t at = unit * columns;
        const int n = (int)(args.channels - at < columns ? args.channels - at : columns);
        for (int32_t number = 0; number < batch->segments; number++) {
            const lk_slot_segment segment = lk_segment_at(batch, number);
            const history own = slot_history(args, segment.slot, at);
            const float* x = args.x.data + segment.first * args.x.stride + at;
            float* out = args.out.data + segment.first * args.out.stride + at;
            for (int32_t row = 0; row < segment.count; row++)
                conv_row(args, own.state, x, row, at, n, out + row * args.out.stride);
            if (!segment.verifies) {
                slide(own.state, args.kernel - 1, args.channels, x, args.x.stride, segment.count,
                      n);
                continue;
            }
            for (int32_t row = 0; row < segment.count; row++) {
                memcpy(own.log + (int64_t)row * args.channels, x + row * args.x.stride,
                       (size_t)n * sizeof(float));
            }
        }
    }
}

void conv_replay(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_conv_replay_args& args = *(const lk_conv_replay_args*)record;
    const int64_t columns = unit_columns(args.channels, worker), channels = args.channels;
    const lk_range share = lk_share((channels + columns - 1) / columns, worker);
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int64_t at = unit * columns;
        const int n = (int)(channels - at < columns ? channels - at : columns);
        for (int32_t number = batch->num_prefill; number < batch->segments; number++) {
            const lk_slot_segment segment = lk_segment_at(batch, number);
            if (!segment.verifies) continue;
            float* state = args.state + segment.slot * (args.kernel - 1) * channels + at;
            const float* log = args.log + (int64_t)segment.slot * args.slots.log_rows * channels + at;
            slide(state, args.kernel - 1, channels, log, channels, args.accepted[segment.slot], n);
        }
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
