// Records of the ops that DeepSeek V4 adds. Part of luce_kernels.h, which includes this; see there
// and hybrid_ops.h for rows, caches, slots and workers.
//
// An entry of a compressed cache stands for `ratio` tokens: a block of LK_ENTRY_TOKENS tokens holds
// LK_ENTRY_TOKENS / ratio of them, one row of one head each. A row at position p sees the
// (p + 1) / ratio entries that are complete by then. A ring is a cache whose blocks are slots.
#ifndef LUCE_DEEPSEEK_OPS_H
#define LUCE_DEEPSEEK_OPS_H

#define LK_ENTRY_TOKENS 128
#define LK_MOST_ENTRY_DIM 1024   // scratch is enough for it
#define LK_MOST_STREAMS 8
#define LK_MOST_PICKS 8192       // likewise

// The last 2 * pairs values of each head turn in adjacent pairs by position * inv_freq[i].
typedef struct lk_tail_rope_args {
    lk_rows x;
    const float* inv_freq;  // [pairs]
    int32_t heads, dim, pairs;
    float factor;
    lk_rows out;
} lk_tail_rope_args;

typedef struct lk_window_write_args {
    lk_rows kv;
    lk_cache ring;
} lk_window_write_args;

// Folds rows into their slot's pools [slots, series, 3, dim] (largest logit, sum, mix); the last row
// of a window writes its entry. `series` 2: windows overlap. See compress_kv for the formula.
typedef struct lk_compress_kv_args {
    lk_rows values, gates;  // [rows, series * dim]
    float* pool;
    lk_cache cache;
    const float* ape;       // [ratio, series * dim]
    const float* norm;      // [dim]
    const float* inv_freq;  // [pairs]
    int32_t series, ratio, pairs;
    float eps, factor;
    lk_slots slots;
} lk_compress_kv_args;

// The numbers of the top_k entries by sum over heads of weight * max(0, q . key), ascending; zeros
// behind the last. All entries that the row sees, if there are no more than top_k.
typedef struct lk_index_topk_args {
    lk_rows q, weights;     // [rows, heads * dim], [rows, heads]
    lk_cache cache;
    int32_t heads, ratio, top_k;
    lk_rows out;            // [rows, top_k]
} lk_index_topk_args;

// Attention with a sink logit per head over the ring's last `window` positions, then over entries:
// those that `picks` names (data NULL: all); ratio 0: none. One vector is key and value. Parts of at
// most LK_KV_PART begin at the first key of the window and at the first entry.
typedef struct lk_entry_attention_args {
    lk_rows q, picks;
    lk_cache ring, cache;
    const float* sinks;     // [heads]
    int32_t heads, window, ratio;
    float scale;
    lk_rows out;
} lk_entry_attention_args;

// A route on which every row goes to all groups with weight 1.
typedef struct lk_group_route_args {
    lk_rows out;            // [rows, 2, groups]
    int32_t groups;
} lk_group_route_args;

// As lk_moe_route_args, with s = sqrt(softplus(logit)) as scores: the weights of the experts that
// `table` names for a row's token.
typedef struct lk_route_by_token_args {
    lk_rows logits, out;
    const float* table;     // [vocabulary, top_k]
    int64_t vocabulary;
    int32_t top_k;
    float scale;
} lk_route_by_token_args;

typedef struct lk_hyper_begin_args {
    lk_rows x, out;         // out: [rows, streams, width of x]
    int32_t streams;
} lk_hyper_begin_args;

// The coefficients of a row's streams; see hyper_mix for the formula.
typedef struct lk_hyper_mix_args {
    lk_rows x;              // [rows, streams * dim]
    const float* fn;        // [coefficients, streams * dim]
    const float* base;      // [coefficients]
    const float* scale;     // [3], with `head` [1]
    int32_t streams, head, iterations;
    float eps, hc_eps;
    lk_rows out;            // [rows, coefficients]: streams * (2 + streams), with `head` streams
} lk_hyper_mix_args;

typedef struct lk_hyper_merge_args {
    lk_rows x, mix, out;
    int32_t streams;
} lk_hyper_merge_args;

typedef struct lk_hyper_spread_args {
    lk_rows x, mix, y, out;
    int32_t streams;
} lk_hyper_spread_args;

void lk_tail_rope(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_window_write(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_compress_kv(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_index_topk(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_entry_attention(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_group_route(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_route_by_token(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_hyper_begin(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_hyper_mix(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_hyper_merge(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_hyper_spread(const void* args, const lk_batch* batch, lk_worker* worker);

#endif
