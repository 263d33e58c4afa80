// What DeepSeek V4 keeps of the tokens that it has read: the window's ring, and compressed entries.
#include "cache_encode.h"
#include "exp.h"
#include "hybrid_kernels.h"
#include "norm_row.h"
#include "partial_vec.h"
#include "rope_row.h"
#include "slot_segments.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

constexpr int LOGIT = 0, SUM = 1, MIX = 2;  // of a pool

// Heads of which the tail turns, as rope of that tail alone.
lk_rope_args tail_of(const float* inv_freq, int32_t pairs, float factor) {
    lk_rope_args tail{};
    tail.inv_freq = inv_freq;
    tail.heads = 1;
    tail.dim = 2 * pairs;
    tail.pairs = pairs;
    tail.interleaved = 1;
    tail.factor = factor;
    return tail;
}

// A value of NaN stays one: largest, and then all else, is NaN.
void fold(float* pool, int dim, const float* gates, const float* ape, const float* values) {
    float *logits = pool + LOGIT * dim, *sums = pool + SUM * dim, *mixes = pool + MIX * dim;
    for (int i = 0; i < dim; i += W) {
        const int n = dim - i;
        const vf logit = add(load_some(gates + i, n), load_some(ape + i, n));
        const vf before = load_some(logits + i, n), largest = max(before, logit);
        const vf kept = exp(sub(before, largest)), added = exp(sub(logit, largest));
        const vf mix = mul(load_some(mixes + i, n), kept);
        store_some(mixes + i, add(mix, mul(added, load_some(values + i, n))), n);
        store_some(sums + i, add(mul(load_some(sums + i, n), kept), added), n);
        store_some(logits + i, largest, n);
    }
}

void clear_pool(float* pool, int dim) {
    for (int i = 0; i < dim; i++) pool[LOGIT * dim + i] = -__builtin_inff();
    memset(pool + SUM * dim, 0, sizeof(float) * 2 * (size_t)dim);
}

// The first series of a window is what the next entry begins with.
void begin_window(float* pools, int dim, int series, bool continues) {
    if (series == 1) return clear_pool(pools, dim);
    float* next = pools + 3 * dim;
    if (continues) {
        memcpy(pools, next, sizeof(float) * 3 * (size_t)dim);
    } else {
        clear_pool(pools, dim);
    }
    clear_pool(next, dim);
}

// The finished entry of a pool into `entry` [dim], which stands at position `first`.
void finish_entry(const lk_compress_kv_args& args, const float* pool, int32_t first,
                  float* entry) {
    const int dim = args.cache.dim;
    for (int i = 0; i < dim; i += W) {
        const int n = dim - i;
        store_some(entry + i, div(load_some(pool + MIX * dim + i, n), load_some(pool + SUM * dim + i, n)), n);
    }
    scale_values(entry, args.norm, inverse_rms(entry, dim, args.eps), dim, entry);
    const lk_rope_args tail = tail_of(args.inv_freq, args.pairs, args.factor);
    turns turn;
    find_turns(tail, first, 0, args.pairs, &turn);
    float* at = entry + dim - 2 * args.pairs;
    turn_pairs(at, turn, args.pairs, at);
}

void compress_row(const lk_compress_kv_args& args, const lk_batch* batch, float* pools, int64_t row,
                  float* entry) {
    const int dim = args.cache.dim;
    const int32_t position = batch->positions[row], phase = position % args.ratio;
    if (phase == 0) begin_window(pools, dim, args.series, args.series == 2 && position > 0);
    const float* gates = args.gates.data + row * args.gates.stride;
    const float* values = args.values.data + row * args.values.stride;
    const float* ape = args.ape + (int64_t)phase * args.series * dim;
    const int own = (args.series - 1) * dim;
    fold(pools, dim, gates + own, ape + own, values + own);
    if (args.series == 2) fold(pools + 3 * dim, dim, gates, ape, values);
    if (phase != args.ratio - 1) return;
    finish_entry(args, pools, position - phase, entry);
    encode_row(args.cache, entry, cache_row(&args.cache, batch->kv_rows[row] / args.ratio, 0));
}

}  // namespace

void tail_rope(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_tail_rope_args& args = *(const lk_tail_rope_args*)record;
    const lk_rope_args tail = tail_of(args.inv_freq, args.pairs, args.factor);
    const int first = args.dim - 2 * args.pairs;
    const lk_range share = lk_share((int64_t)batch->rows * args.heads, worker);
    row_turns known;
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int64_t row = unit / args.heads, head = unit % args.heads * args.dim;
        const float* x = args.x.data + row * args.x.stride + head;
        float* out = args.out.data + row * args.out.stride + head;
        memcpy(out, x, sizeof(float) * (size_t)first);
        rope_head(tail, batch, row, &known, x + first, out + first);
    }
}

// By columns, so that rows of the null slot, which share an entry, have one writer.
void window_write(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_window_write_args& args = *(const lk_window_write_args*)record;
    const int dim = args.ring.dim, size = args.ring.type == LK_F32 ? 4 : 2;
    const lk_range share = lk_share((dim + W - 1) / W, worker);
    const int at = (int)share.begin * W, stop = (int)share.end * W < dim ? (int)share.end * W : dim;
    if (at >= stop) return;
    for (int32_t number = 0; number < batch->segments; number++) {
        const lk_slot_segment segment = lk_segment_at(batch, number);
        for (int64_t row = segment.first; row < segment.first + segment.count; row++) {
            const int64_t entry = (int64_t)segment.slot * args.ring.block_size +
                                  batch->positions[row] % args.ring.block_size;
            encode_plain(args.ring.type, args.kv.data + row * args.kv.stride + at, stop - at,
                         cache_row(&args.ring, entry, 0) + at * size);
        }
    }
}

// A segment is one worker's; all those of the null slot, which share its pools, are the first one's.
void compress_kv(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_compress_kv_args& args = *(const lk_compress_kv_args*)record;
    const int64_t pools = (int64_t)args.series * 3 * args.cache.dim;
    float* entry = (float*)worker->scratch;
    for (int32_t number = 0; number < batch->segments; number++) {
        const lk_slot_segment segment = lk_segment_at(batch, number);
        const bool is_null = segment.slot == args.slots.count - 1;
        if ((is_null ? 0 : number % worker->count) != worker->index) continue;
        for (int64_t row = segment.first; row < segment.first + segment.count; row++)
            compress_row(args, batch, args.pool + segment.slot * pools, row, entry);
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
