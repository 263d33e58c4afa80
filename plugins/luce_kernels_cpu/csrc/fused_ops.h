// Records of several ops at once, each with the bits of its ops one by one. Part of luce_kernels.h,
// which includes this; see there for rows, caches and workers. Workers need 1 MiB of scratch at
// least.
#ifndef LUCE_FUSED_OPS_H
#define LUCE_FUSED_OPS_H

// One of several products with the same rows. Reads `xq` if the weight's kernel takes int8
// activations, else the rows themselves.
typedef struct lk_projection {
    const lk_weight* weight;
    lk_quantized xq;
    const float* bias;       // [n] or NULL
} lk_projection;

// silu(x @ gate^T) * (x @ up^T). `out.data` NULL: the int8 form alone; `quantized.q` NULL: the
// floats alone.
typedef struct lk_gate_up_args {
    lk_rows x;
    lk_projection gate, up;
    float limit;             // 0: none
    lk_rows out;
    lk_quantized quantized;
} lk_gate_up_args;

// How the rows of a step turn, for all layers: row r of `out` has a cosine and a sine of each pair,
// of position * inv_freq[i], times `factor`. They lie LK_TURN_WIDTH apart, as vectors multiply them:
// of halves c0 c1 ... and s0 s1 ..., of interleaved pairs c0 c0 c1 c1 ... and -s0 s0 -s1 s1 ...
#define LK_TURN_WIDTH(pairs, interleaved) (((interleaved ? 2 : 1) * (pairs) + 15) / 16 * 16)
typedef struct lk_turns_args {
    const float* inv_freq;   // [pairs]
    int32_t pairs, interleaved;
    float factor;
    lk_rows out;
} lk_turns_args;

// The products q, k and v, and with their heads what lk_rope_write does; turns are read from
// `turns`. Heads are of whole tiles of 16. Products lie in `heads.q.x`, which is `heads.q.out`,
// `heads.k.x` and `heads.v`, where q is turned in place and k too.
typedef struct lk_project_heads_args {
    lk_rows x;
    lk_projection q, k, v;
    lk_rope_write_args heads;
    lk_rows turns;
    int32_t* arrived;        // [heads + 2 * kv_heads], 0 between steps
} lk_project_heads_args;

// x @ head^T and lk_greedy_token of it. Logits are written for rows that the batch says are read.
typedef struct lk_head_token_args {
    lk_rows x;
    lk_projection head;
    lk_rows logits;          // data NULL: of no row
    int32_t* tokens;
    uint64_t* best;          // [rows], 0 between steps
    int32_t* arrived;        // [1], 0 between steps
} lk_head_token_args;

void lk_gate_up(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_turns(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_project_heads(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_head_token(const void* args, const lk_batch* batch, lk_worker* worker);

#endif
