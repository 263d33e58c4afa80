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

void lk_gate_up(const void* args, const lk_batch* batch, lk_worker* worker);

#endif
