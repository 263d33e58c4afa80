// Chooses the variant of the instruction set in use.
#include "row_kernels.h"

#include "isa.h"

#define LK_DISPATCH(NAME, FUNCTION)                                                    \
    extern "C" void NAME(const void* args, const lk_batch* batch, lk_worker* worker) { \
        switch (lk::current_isa()) {                                                   \
            case lk::Isa::AVX2: return lk::avx2::FUNCTION(args, batch, worker);        \
            case lk::Isa::AVX512: return lk::avx512::FUNCTION(args, batch, worker);    \
            default: return lk::avx512_vnni::FUNCTION(args, batch, worker);            \
        }                                                                              \
    }

LK_DISPATCH(lk_norm, norm)
LK_DISPATCH(lk_rope, rope)
LK_DISPATCH(lk_kv_write, kv_write)
LK_DISPATCH(lk_rope_write, rope_write)
LK_DISPATCH(lk_attention, attention)
LK_DISPATCH(lk_swiglu, swiglu)
LK_DISPATCH(lk_add, add_rows)
LK_DISPATCH(lk_gather, gather_rows)
LK_DISPATCH(lk_greedy_token, greedy_token_rows)
LK_DISPATCH(lk_gate_up, gate_up)
LK_DISPATCH(lk_turns, turn_rows)
LK_DISPATCH(lk_project_heads, project_heads)
LK_DISPATCH(lk_head_token, head_token)
