// The lightning indexer of DeepSeek V4: which compressed entries a row attends to.
#include <stdlib.h>

#include <algorithm>

#include "entry_rows.h"
#include "hybrid_kernels.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

struct scored {
    float score;
    int32_t entry;
};

// As torch sorts in descending order: NaN first, equals in their order.
bool comes_before(const scored& a, const scored& b) {
    if (a.score > b.score || (a.score != a.score && b.score == b.score)) return true;
    const bool is_equal = a.score == b.score || (a.score != a.score && b.score != b.score);
    return is_equal && a.entry < b.entry;
}

constexpr int HEADS = TILE_ROWS;  // whose scores are held at once

struct index_workspace {
    float* block;    // [KV_KEYS][padded(dim)]
    float* dots;     // [HEADS][KV_KEYS + W]
    float* scores;   // [KV_KEYS + W]
    scored* kept;    // [most]
    int32_t most;
};

index_workspace take_index_workspace(const lk_index_topk_args& args, lk_worker* worker) {
    index_workspace work;
    work.block = (float*)worker->scratch;
    work.dots = work.block + (int64_t)KV_KEYS * padded(args.cache.dim);
    work.scores = work.dots + HEADS * (KV_KEYS + W);
    work.kept = (scored*)(work.scores + KV_KEYS + W);
    work.most = 2 * args.top_k + KV_KEYS;
    // What LK_MOST_ENTRY_DIM and LK_MOST_PICKS allow.
    if ((uint8_t*)(work.kept + work.most) > worker->scratch + worker->scratch_bytes) abort();
    return work;
}

// Scores of `count` entries whose keys are in the block: heads in order, one chain of fma.
void score_entries(const lk_index_topk_args& args, const float* q, const float* weights, int count,
                   index_workspace* work) {
    const int dim = args.cache.dim;
    for (int i = 0; i < count; i += W) store(work->scores + i, zero());
    for (int32_t head = 0; head < args.heads; head += HEADS) {
        const int here = args.heads - head < HEADS ? args.heads - head : HEADS;
        score_block(here, q + (int64_t)head * dim, dim, work->block, count, work->dots,
                    KV_KEYS + W);
        for (int i = 0; i < count; i += W) {
            vf sum = load(work->scores + i);
            for (int h = 0; h < here; h++) {
                // max gives its second operand where one is NaN.
                const vf dot = max(zero(), load(work->dots + h * (KV_KEYS + W) + i));
                sum = fma(dot, set1(weights[head + h]), sum);
            }
            store(work->scores + i, sum);
        }
    }
}

// The best top_k of `count` candidates come first, in any order.
void keep_best(scored* kept, int32_t count, int32_t top_k) {
    if (count > top_k) std::nth_element(kept, kept + top_k - 1, kept + count, comes_before);
}

void pick_entries(const lk_index_topk_args& args, const lk_batch* batch, int64_t row,
                  int32_t segment, index_workspace* work) {
    float* out = args.out.data + row * args.out.stride;
    const int32_t count = (batch->positions[row] + 1) / args.ratio, top_k = args.top_k;
    if (count <= top_k) {
        for (int32_t i = 0; i < top_k; i++) out[i] = i < count ? (float)i : 0.0f;
        return;
    }
    const block_reader read_keys = key_reader(args.cache.type);
    const float* q = args.q.data + row * args.q.stride;
    const float* weights = args.weights.data + row * args.weights.stride;
    stored_rows none;
    none.count = 0;
    int32_t kept = 0;
    for (int32_t first = 0; first < count; first += KV_KEYS) {
        const stored_rows keys = entry_rows(args.cache, batch, segment, first, count);
        read_keys(keys, none, args.cache.dim, work->block);
        score_entries(args, q, weights, keys.count, work);
        if (kept + keys.count > work->most) {
            keep_best(work->kept, kept, top_k);
            kept = top_k;
        }
        for (int32_t i = 0; i < keys.count; i++) work->kept[kept++] = {work->scores[i], first + i};
    }
    keep_best(work->kept, kept, top_k);
    std::sort(work->kept, work->kept + top_k,
              [](const scored& a, const scored& b) { return a.entry < b.entry; });
    for (int32_t i = 0; i < top_k; i++) out[i] = (float)work->kept[i].entry;
}

}  // namespace

void index_topk(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_index_topk_args& args = *(const lk_index_topk_args*)record;
    index_workspace work = take_index_workspace(args, worker);
    const lk_range share = lk_share(batch->rows, worker);
    int32_t segment = 0;
    for (int64_t row = share.begin; row < share.end; row++) {
        while (row >= batch->cu_seqlens[segment + 1]) segment++;
        pick_entries(args, batch, row, segment, &work);
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
