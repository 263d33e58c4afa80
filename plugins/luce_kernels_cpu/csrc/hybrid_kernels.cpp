// Chooses the variant of the instruction set in use.
#include "hybrid_kernels.h"

#include "isa.h"

#define LK_DISPATCH(NAME)                                                                 \
    extern "C" void lk_##NAME(const void* args, const lk_batch* batch, lk_worker* worker) { \
        switch (lk::current_isa()) {                                                      \
            case lk::Isa::AVX2: return lk::avx2::NAME(args, batch, worker);               \
            case lk::Isa::AVX512: return lk::avx512::NAME(args, batch, worker);           \
            default: return lk::avx512_vnni::NAME(args, batch, worker);                   \
        }                                                                                 \
    }

LK_HYBRID_KERNELS(LK_DISPATCH)
