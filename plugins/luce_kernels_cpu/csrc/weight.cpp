// lk_weight: sizes and accessors. Packing is in weight_pack.cpp.
#include "weight.h"

#include <cstdlib>

#include "formats.h"
#include "kernels.h"

extern "C" {

LK_API void lk_weight_free(lk_weight* weight) {
    if (weight == nullptr) return;
    lk::give_weight_memory(weight->memory);
    std::free(weight);
}

LK_API int64_t lk_weight_bytes(const lk_weight* weight) { return weight->bytes; }
LK_API int64_t lk_weight_rows(const lk_weight* weight) { return weight->n; }
LK_API int64_t lk_weight_columns(const lk_weight* weight) { return weight->k; }
LK_API const char* lk_weight_kernel(const lk_weight* weight) { return weight->name; }
LK_API int32_t lk_weight_int8_block(const lk_weight* weight) {
    return weight->format->int8_block();
}

}  // extern "C"
