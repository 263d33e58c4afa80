// The kernels of attention and of rows, once per instruction set.
#ifndef LUCE_ROW_KERNELS_H
#define LUCE_ROW_KERNELS_H

#include "luce_kernels.h"

#define LK_DECLARE_ROW_KERNELS(NS)                                                \
    namespace NS {                                                                \
    void norm(const void* args, const lk_batch* batch, lk_worker* worker);        \
    void rope(const void* args, const lk_batch* batch, lk_worker* worker);        \
    void kv_write(const void* args, const lk_batch* batch, lk_worker* worker);    \
    void rope_write(const void* args, const lk_batch* batch, lk_worker* worker);  \
    void attention(const void* args, const lk_batch* batch, lk_worker* worker);   \
    void swiglu(const void* args, const lk_batch* batch, lk_worker* worker);      \
    void add_rows(const void* args, const lk_batch* batch, lk_worker* worker);    \
    void gather_rows(const void* args, const lk_batch* batch, lk_worker* worker); \
    void greedy_token_rows(const void* args, const lk_batch* batch, lk_worker* worker); \
    void gate_up(const void* args, const lk_batch* batch, lk_worker* worker);     \
    void turn_rows(const void* args, const lk_batch* batch, lk_worker* worker);   \
    void project_heads(const void* args, const lk_batch* batch, lk_worker* worker); \
    void head_token(const void* args, const lk_batch* batch, lk_worker* worker);  \
    }

namespace lk {
LK_DECLARE_ROW_KERNELS(avx2)
LK_DECLARE_ROW_KERNELS(avx512)
LK_DECLARE_ROW_KERNELS(avx512_vnni)
}  // namespace lk

#endif
