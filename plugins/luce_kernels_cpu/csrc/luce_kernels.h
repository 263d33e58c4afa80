// The plain C interface of the CPU kernel library: what Python calls through ctypes, and what the
// tape calls for each step. No C++ types, no exceptions and no torch cross it.
//
// A kernel is called by every worker of a parallel region with the same arguments. It divides its
// work by `worker->index` and `worker->count` so that each output element is computed by exactly
// one worker, always in the same order: bits depend neither on the number of workers nor on how
// many other rows the step has. It must not wait for other workers except through lk_barrier().
#ifndef LUCE_KERNELS_H
#define LUCE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LK_ABI_VERSION 1
#define LK_API __attribute__((visibility("default")))

// ---- workers --------------------------------------------------------------------------------

typedef struct lk_worker {
    int32_t index;          // 0 .. count-1
    int32_t count;
    void* pool;             // for lk_barrier
    uint8_t* scratch;       // private to this worker, 64-byte aligned
    int64_t scratch_bytes;
} lk_worker;

typedef struct lk_pool lk_pool;

// A pool of `threads` workers, the caller being worker 0. Others spin about `spin_us` and then
// park; inside a region ten times as long. NULL if threads < 1 or threads cannot be made.
LK_API lk_pool* lk_pool_create(int32_t threads, int32_t spin_us, int64_t scratch_bytes);
LK_API void lk_pool_destroy(lk_pool* pool);
LK_API int32_t lk_pool_threads(const lk_pool* pool);
// Where workers are kept from running, a pool uses fewer of them for a while; `keep` 1: never.
LK_API void lk_pool_keep_all(lk_pool* pool, int32_t keep);
// All workers meet here; legal only inside a kernel or between kernels of a tape.
void lk_barrier(lk_worker* worker);

// ---- the step -------------------------------------------------------------------------------

// The packed ragged batch of luce_core.batch.packed, int32, row counts live. `limit_*` are bounds
// that lk_check_batch verifies once per step, so that kernels need no checks.
typedef struct lk_batch {
    const int32_t* token_ids;     // [rows]
    const int32_t* positions;     // [rows]
    const int32_t* cu_seqlens;    // [segments + 1]
    const int32_t* slot_ids;      // [segments]
    const int32_t* context_lens;  // [segments]
    const int32_t* block_tables;  // [segments, table_stride]
    const int32_t* kv_rows;       // [rows]
    const int32_t* logit_rows;    // [logits]
    const int32_t* cu_logits;     // [segments + 1]
    const int32_t* logits_read;   // [logits], 0: only the best token is wanted; NULL: all are read
    int32_t rows, segments, logits;
    int32_t num_prefill, prefill_rows;
    int32_t max_query, max_context;
    int32_t table_stride;
} lk_batch;

// Which count of the batch an activation's rows follow. LK_ROWS_FIXED: `rows` of the buffer.
enum { LK_ROWS_TOKENS = 0, LK_ROWS_LOGITS = 1, LK_ROWS_FIXED = 2 };

// A float32 activation: element (r, i) at data[r * stride + i], strides in elements.
typedef struct lk_rows {
    float* data;
    int64_t stride;
    int32_t width;
    int32_t domain;
    int32_t rows;  // LK_ROWS_FIXED only
} lk_rows;

static inline int32_t lk_row_count(const lk_rows* x, const lk_batch* batch) {
    return x->domain == LK_ROWS_TOKENS ? batch->rows
         : x->domain == LK_ROWS_LOGITS ? batch->logits : x->rows;
}

// ---- weights --------------------------------------------------------------------------------

// An opaque packed matrix [n, k] of one GGUF type. `lk_weight_pack` copies and repacks rows of
// quant blocks as they lie in the file; NULL if the type is unknown or sizes do not fit (see
// lk_last_error). Packing may run on `pool`.
typedef struct lk_weight lk_weight;
LK_API lk_weight* lk_weight_pack(lk_pool* pool, int32_t ggml_type, int64_t n, int64_t k,
                                 const uint8_t* blocks, int64_t bytes);
LK_API void lk_weight_free(lk_weight* weight);
// IQ1, IQ2 and IQ3 blocks are codes into a book of signed entries that `gguf` ships, 8 values each
// (4 for IQ3). It must be set before such a type is packed; copied; setting it again does nothing.
LK_API int32_t lk_set_code_book(int32_t ggml_type, const int8_t* entries, int64_t bytes);
LK_API int64_t lk_weight_bytes(const lk_weight* weight);
LK_API int64_t lk_weight_rows(const lk_weight* weight);     // n
LK_API int64_t lk_weight_columns(const lk_weight* weight);  // k
// Values that share a scale in the int8 rows that the weight multiplies, 32 or 256; 0 if it reads
// float rows.
LK_API int32_t lk_weight_int8_block(const lk_weight* weight);
LK_API const char* lk_weight_kernel(const lk_weight* weight);  // e.g. "q4_1 avx512-vnni"

// ---- kernels: one argument record each -------------------------------------------------------

typedef void (*lk_kernel)(const void* args, const lk_batch* batch, lk_worker* worker);

// Activations quantised to int8, once per row, for all matmuls that read them: row r has k int8
// values at q + r * q_stride, and at d + r * d_stride a scale for each `block` of them. At
// s + r * d_stride lie k/32 floats (scale * sum of the 32 quants) where blocks have 32 values, and
// k/16 int16 (sums of 16 quants) where they have 256. d_stride is at least k/32.
typedef struct lk_quantized {
    int8_t* q;
    float* d;
    float* s;
    int64_t q_stride, d_stride;
    int32_t k;
    int32_t block;  // 32 or 256
} lk_quantized;

typedef struct lk_quantize_args { lk_rows x; lk_quantized out; } lk_quantize_args;

// out = x @ weight^T (+ bias) (+ residual). Reads `xq` if the weight's kernel takes int8
// activations, else `x`. The rows are those of `x`, also where its data is not read. Workers need
// 1 MiB of scratch at least.
typedef struct lk_matmul_args {
    const lk_weight* weight;
    lk_rows x;
    lk_quantized xq;
    const float* bias;       // [n] or NULL
    lk_rows residual;        // data NULL: none
    lk_rows out;
} lk_matmul_args;

// y = x / sqrt(mean(x^2) + eps) * weight over each group of `group` values (a row, or a head).
// `quantized.q` set: also the int8 form of the output rows.
typedef struct lk_norm_args {
    lk_rows x;
    const float* weight;
    float eps;
    int32_t group;
    lk_rows out;
    lk_quantized quantized;
} lk_norm_args;

// Rotary embedding of heads [rows, heads, dim]; the first 2 * pairs values of a head turn by
// position * inv_freq[i], cos and sin times `factor`. interleaved: pairs (2i, 2i+1), else halves.
typedef struct lk_rope_args {
    lk_rows x;
    const float* inv_freq;   // [pairs]
    int32_t heads, dim, pairs, interleaved;
    float factor;
    lk_rows out;
} lk_rope_args;

enum { LK_F32 = 0, LK_F16 = 1, LK_BF16 = 2, LK_Q8_0 = 3, LK_Q4_0 = 4 };

// One of K and V of one layer: [blocks + 1, block_size, kv_heads, row bytes].
typedef struct lk_cache {
    uint8_t* data;
    int32_t type;
    int32_t kv_heads, dim, block_size;
    int64_t rows;            // (blocks + 1) * block_size
} lk_cache;

typedef struct lk_kv_write_args { lk_rows k, v; lk_cache k_cache, v_cache; } lk_kv_write_args;

// rope of q into `q.out`, and of k into the cache beside v; heads are normed first where a weight
// is set. The bits are those of norm, rope and kv_write. `k.out` is not used. Workers need scratch
// for one head of floats.
typedef struct lk_rope_write_args {
    lk_rope_args q, k;
    const float* q_norm;     // [dim] or NULL
    const float* k_norm;
    float q_eps, k_eps;
    lk_rows v;
    lk_cache k_cache, v_cache;
} lk_rope_write_args;

// Causal attention by positions over block tables, grouped-query. KV is cut into parts at fixed
// absolute positions (multiples of LK_KV_PART); a part's softmax sums in key order, parts combine
// in order: the bits of a row depend on its keys only.
#define LK_KV_PART 256
// Bytes of scratch that each worker must have for heads of `dim`; with more, up to 1 MiB, long
// prompts go faster.
#define LK_ATTENTION_SCRATCH(dim) (4 * (67 * ((int64_t)(dim) + 16) + LK_KV_PART))
typedef struct lk_attention_args {
    lk_rows q;               // [rows, heads * dim]
    lk_cache k_cache, v_cache;
    int32_t heads;
    float scale;
    lk_rows out;
    float* partials;         // shared by the workers, who cut short segments into parts with it;
    int64_t partials_bytes;  // NULL, or too small: a segment's head is one worker's.
                             // ceil(keys / LK_KV_PART) * heads * (dim + 18) floats a row
    lk_quantized quantized;  // `q` set: also the int8 form of the output; dim is whole blocks
} lk_attention_args;

typedef struct lk_swiglu_args {
    lk_rows gate, up, out;
    float limit;             // 0: none
    lk_quantized quantized;
} lk_swiglu_args;

typedef struct lk_add_args { lk_rows a, b, out; } lk_add_args;

// Rows of a packed table by token id (token_ids of the batch).
typedef struct lk_embedding_args { const lk_weight* table; lk_rows out; } lk_embedding_args;

typedef struct lk_gather_args { lk_rows x, out; } lk_gather_args;  // by batch->logit_rows
// The index of each row's largest value, ties to the lowest; -1 if that value is NaN or infinite,
// or if there is a NaN.
typedef struct lk_greedy_token_args { lk_rows x; int32_t* out; } lk_greedy_token_args;

void lk_quantize(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_matmul(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_norm(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_rope(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_kv_write(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_rope_write(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_attention(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_swiglu(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_add(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_embedding(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_gather(const void* args, const lk_batch* batch, lk_worker* worker);
void lk_greedy_token(const void* args, const lk_batch* batch, lk_worker* worker);

#include "hybrid_ops.h"
#include "deepseek_ops.h"
#include "fused_ops.h"

// ---- tape -----------------------------------------------------------------------------------

enum {
    LK_OP_QUANTIZE, LK_OP_MATMUL, LK_OP_NORM, LK_OP_ROPE, LK_OP_KV_WRITE, LK_OP_ATTENTION,
    LK_OP_SWIGLU, LK_OP_ADD, LK_OP_EMBEDDING, LK_OP_GATHER, LK_OP_GREEDY_TOKEN,
    LK_OP_ROPE_WRITE,
    LK_OP_CAUSAL_CONV1D, LK_OP_CONV_REPLAY, LK_OP_GATED_DELTA, LK_OP_GATED_DELTA_REPLAY,
    LK_OP_GATED_NORM, LK_OP_SIGMOID_GATE, LK_OP_PUT_ROWS, LK_OP_AFFINE, LK_OP_TAKE_ROWS,
    LK_OP_DYNAMIC_CONV, LK_OP_RING_WRITE, LK_OP_DRAFT_ATTENTION, LK_OP_DRAFT_DRAW,
    LK_OP_CANDIDATE_SELECT, LK_OP_MOE_ROUTE, LK_OP_MOE_MATMUL, LK_OP_MOE_SUM, LK_OP_MOE_SCALE,
    LK_OP_GATE_UP, LK_OP_TURNS, LK_OP_PROJECT_HEADS, LK_OP_HEAD_TOKEN,
    LK_OP_TAIL_ROPE, LK_OP_WINDOW_WRITE, LK_OP_COMPRESS_KV, LK_OP_INDEX_TOPK,
    LK_OP_ENTRY_ATTENTION, LK_OP_GROUP_ROUTE, LK_OP_ROUTE_BY_TOKEN, LK_OP_HYPER_BEGIN,
    LK_OP_HYPER_MIX, LK_OP_HYPER_MERGE, LK_OP_HYPER_SPREAD,
    LK_OP_COUNT
};

// The largest step that a tape's buffers hold; 0 is no limit.
typedef struct lk_limits { int32_t rows, logits, segments; } lk_limits;

typedef struct lk_tape lk_tape;
// Records are copied (args_bytes each, of the op's record type). `barrier` 0: the next record does
// not depend on this one across workers.
LK_API lk_tape* lk_tape_create(const lk_limits* limits);
LK_API int32_t lk_tape_add(lk_tape* tape, int32_t op, const void* args, int64_t args_bytes,
                           int32_t barrier);
LK_API void lk_tape_free(lk_tape* tape);
// Verifies table entries, lengths and rows against the bounds, then runs every record on the pool.
// 0, or -1 and lk_last_error. `op_ns` [records] gets nanoseconds of worker 0 per record if not NULL.
LK_API int32_t lk_tape_run(const lk_tape* tape, lk_pool* pool, const lk_batch* batch,
                           int64_t* op_ns);
// One record, for the eager path and for tests.
LK_API int32_t lk_run(lk_pool* pool, int32_t op, const void* args, int64_t args_bytes,
                      const lk_batch* batch);

// ---- what the machine does at best, to compare kernels with ------------------------------------

// Per second, all workers, the best of several short runs: operations on registers (a product and
// a sum are two) with the instruction set in use, and bytes read from memory of `bytes` bytes that
// lies as weights lie. 0 and lk_last_error if they cannot be measured.
LK_API double lk_peak_int8(lk_pool* pool);
LK_API double lk_peak_float(lk_pool* pool);
LK_API double lk_peak_read(lk_pool* pool, int64_t bytes);

// ---- library --------------------------------------------------------------------------------

// "avx2", "avx512", "avx512-vnni", "amx"; lk_force_isa chooses one that the machine has (-1 if not).
LK_API const char* lk_isa(void);
// Those that the machine has, the best first, with a space between; empty if it has none.
LK_API const char* lk_isas(void);
LK_API int32_t lk_force_isa(const char* name);
LK_API int32_t lk_abi_version(void);
LK_API const char* lk_last_error(void);  // of this thread

#ifdef __cplusplus
}
#endif
#endif
