// The kernels of hybrid_ops.h but lk_moe_matmul, and of deepseek_ops.h, once per instruction set.
#ifndef LUCE_HYBRID_KERNELS_H
#define LUCE_HYBRID_KERNELS_H

#include "luce_kernels.h"

// Every kernel's name; its entry point is lk_NAME.
#define LK_HYBRID_KERNELS(EACH) \
    EACH(causal_conv1d)         \
    EACH(conv_replay)           \
    EACH(gated_delta)           \
    EACH(gated_delta_replay)    \
    EACH(gated_norm)            \
    EACH(sigmoid_gate)          \
    EACH(put_rows)              \
    EACH(affine)                \
    EACH(take_rows)             \
    EACH(dynamic_conv)          \
    EACH(ring_write)            \
    EACH(draft_attention)       \
    EACH(draft_draw)            \
    EACH(candidate_select)      \
    EACH(moe_route)             \
    EACH(moe_sum)               \
    EACH(moe_scale)             \
    EACH(tail_rope)             \
    EACH(window_write)          \
    EACH(compress_kv)           \
    EACH(index_topk)            \
    EACH(entry_attention)       \
    EACH(group_route)           \
    EACH(route_by_token)        \
    EACH(hyper_begin)           \
    EACH(hyper_mix)             \
    EACH(hyper_merge)           \
    EACH(hyper_spread)

#define LK_DECLARE_HYBRID(NAME) \
    void NAME(const void* args, const lk_batch* batch, lk_worker* worker);

namespace lk {
namespace avx2 {
LK_HYBRID_KERNELS(LK_DECLARE_HYBRID)
}
namespace avx512 {
LK_HYBRID_KERNELS(LK_DECLARE_HYBRID)
}
namespace avx512_vnni {
LK_HYBRID_KERNELS(LK_DECLARE_HYBRID)
}
}  // namespace lk

#endif
