// Records of the ops that hybrid models and block drafts add. Part of luce_kernels.h, which
// includes this; see there for rows, caches and workers.
//
// State lies by slot: [slots, ...] of float32, the last slot the null slot. A decode segment of more
// than one row verifies drafts: it leaves its slot's state and writes logs [slots, log_rows, ...],
// from which a replay moves the state on by the first `accepted[slot]` rows. Units of work are parts
// of a row's width and never segments, so that segments of the null slot have one writer.
#ifndef LUCE_HYBRID_OPS_H
#define LUCE_HYBRID_OPS_H

typedef struct lk_slots {
    int32_t count;     // the null slot included
    int32_t log_rows;  // of each slot; 0 where a record has no logs
} lk_slots;

// silu of a depthwise causal convolution over a slot's last inputs and a segment's rows.
typedef struct lk_causal_conv1d_args {
    lk_rows x, out;
    const float* taps;       // [kernel, channels]: the last meets the row itself
    float* state;            // [slots, kernel - 1, channels], oldest first
    float* log;              // [slots, log_rows, channels]
    int32_t channels, kernel;
    lk_slots slots;
} lk_causal_conv1d_args;

typedef struct lk_conv_replay_args {
    const int32_t* accepted;  // [slots]
    const float* log;
    float* state;
    int32_t channels, kernel;
    lk_slots slots;
} lk_conv_replay_args;

// Value head h reads key head h mod key_heads.
typedef struct lk_delta_shape {
    int32_t key_heads, value_heads, key_dim, value_dim;
} lk_delta_shape;

#define LK_MOST_KEY_DIM 1024  // of draft attention's heads too: scratch is enough for it

// The gated delta rule in token order. Of each column of a head's state the sums over key_dim are
// one chain of fma, and a row's update is the same two roundings wherever it is made.
typedef struct lk_gated_delta_args {
    lk_rows qkv, alpha, beta, out;  // qkv: queries and keys by key head, values by value head
    const float* rate;              // [value_heads], negative
    const float* bias;              // [value_heads], onto alpha
    float* state;                   // [slots, value_heads, key_dim, value_dim]
    float* key_log;                 // [slots, log_rows, key_heads, key_dim], of unit length
    float* delta_log;               // [slots, log_rows, value_heads, value_dim]
    float* decay_log;               // [slots, log_rows, value_heads]
    lk_delta_shape shape;
    float eps;
    lk_slots slots;
} lk_gated_delta_args;

typedef struct lk_gated_delta_replay_args {
    const int32_t* accepted;  // [slots]
    const float* key_log;
    const float* delta_log;
    const float* decay_log;
    float* state;
    lk_delta_shape shape;
    lk_slots slots;
} lk_gated_delta_replay_args;

// x / sqrt(mean(x^2) + eps) * weight * silu(z) over each group of values. As in lk_norm_args, the
// int8 form may be made as well, or alone.
typedef struct lk_gated_norm_args {
    lk_rows x, z;
    const float* weight;
    float eps;
    int32_t group;
    lk_rows out;
    lk_quantized quantized;
} lk_gated_norm_args;

// x * sigmoid(gate); the gate has one value for each of x, or one for the row.
typedef struct lk_sigmoid_gate_args {
    lk_rows x, gate, out;
    lk_quantized quantized;
} lk_sigmoid_gate_args;

typedef struct lk_affine_args {
    lk_rows x;
    const float* scale;  // [1]
    const float* bias;   // [width] or NULL
    lk_rows out;
} lk_affine_args;

// Rows that outlive their step, at places that the host says.
typedef struct lk_places {
    float* buffer;          // [rows, width]
    const int32_t* places;  // [max_rows]: the buffer's row of each row of the batch
    int32_t rows, width, max_rows;
} lk_places;

// x into the columns from `column` on.
typedef struct lk_put_rows_args {
    lk_rows x;
    lk_places at;
    int32_t column;
} lk_put_rows_args;

typedef struct lk_take_rows_args {
    lk_places at;
    lk_rows out;
} lk_take_rows_args;

// Row i of a segment: the sum over t of (base[t] + delta[i, t, group of the value]) * x[i - t].
typedef struct lk_dynamic_conv_args {
    lk_rows x, delta;    // delta: [2 sides, taps, width / group]
    const float* base;   // [2 sides, taps, width]
    int32_t side, taps, group;
    lk_rows out;
} lk_dynamic_conv_args;

// Keys and values into rings [slots, ring, kv_heads, dim], which are caches whose blocks are slots.
typedef struct lk_ring_write_args {
    lk_kv_write_args write;
    const int32_t* ring_rows;  // [max_rows]: slot * ring + position % ring of each row
    int32_t max_rows;
} lk_ring_write_args;

// Softmax attention of blocks over their slots' rings and their own rows: the keys that a row sees
// lie less than `window` positions from it (0: anywhere), and with `causal` not behind it.
typedef struct lk_draft_attention_args {
    lk_rows q, k, v;
    lk_cache k_ring, v_ring;
    int32_t heads, window, causal;
    float scale;
    lk_rows out;
} lk_draft_attention_args;

// The sampler's noise for the rows of each slot's block.
typedef struct lk_noise {
    const float* temperatures;  // [slots]; 0: none
    const int64_t* keys;        // [slots, keys_per_slot]: one for each row of a block
    int32_t slots, keys_per_slot;
} lk_noise;

typedef struct lk_draft_draw_args {
    lk_rows logits;
    lk_noise noise;
    int32_t* out;  // [logits]
} lk_draft_draw_args;

#define LK_MOST_CANDIDATES 64
#define LK_MOST_RANK 65536

typedef struct lk_candidate { float value; int32_t token; } lk_candidate;

// Tokens of each block, one after the other, among the `top_k` of each row of logits: by logit plus
// <predecessor(token before) * g, successor(token)>.
typedef struct lk_candidate_select_args {
    lk_rows logits, g;
    lk_noise noise;
    const lk_weight* predecessors;  // [vocabulary, rank]
    const lk_weight* successors;
    int32_t top_k;
    lk_candidate* offered;          // [logits, top_k], shared by the workers
    int32_t* counts;                // [logits], likewise
    int32_t* out;                   // [logits]
} lk_candidate_select_args;

// The experts of each row: the numbers of the top_k largest scores, largest first, ties to the lowest
// number, then their weights times `scale`. Softmax: scores are logits, weights the softmax of those
// chosen. Sqrt-softplus: s = sqrt(log(1 + e^logit)), chosen by s + bias, weights are s / sum of s.
// out and every `route` below: [rows, 2, top_k].
enum { LK_SOFTMAX = 0, LK_SQRT_SOFTPLUS = 1 };
#define LK_MOST_EXPERTS 1024  // with sqrt-softplus
typedef struct lk_moe_route_args {
    lk_rows logits, out;
    const float* bias;  // [experts] or NULL
    int32_t top_k;      // at most LK_MOST_CANDIDATES
    int32_t scoring;
    float scale;
} lk_moe_route_args;

// out[row, place] = x[row, place or 0] @ weight[expert]^T. `weight` holds the experts' rows one
// after the other, each expert's padded to a multiple of 16. x and xq as in lk_matmul_args, with the
// `inputs` of a row (1 or top_k) side by side. Of an expert's rows at most `group_rows` are
// multiplied at a time, 0 for as many as there can be.
#define LK_MOST_GROUP_ROWS 32
typedef struct lk_moe_matmul_args {
    const lk_weight* weight;
    lk_rows x;
    lk_quantized xq;
    lk_rows route, out;
    int32_t experts, top_k, inputs, n;
    int32_t group_rows;
} lk_moe_matmul_args;

// out = the sum over places of x[place] * the route's weight.
typedef struct lk_moe_sum_args {
    lk_rows x, route, out;
    int32_t top_k;
} lk_moe_sum_args;

typedef struct lk_moe_scale_args {
    lk_rows x, route, out;
    const float* scale;  // [experts]
    int32_t experts, top_k;
} lk_moe_scale_args;

void lk_causal_conv1d(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_conv_replay(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_gated_delta(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_gated_delta_replay(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_gated_norm(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_sigmoid_gate(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_put_rows(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_affine(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_take_rows(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_dynamic_conv(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_ring_write(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_draft_attention(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_draft_draw(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_candidate_select(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_moe_route(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_moe_matmul(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_moe_sum(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_moe_scale(const void* args, const lk_batch* batch, lk_worker* worker);

#endif
