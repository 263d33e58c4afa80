// Rows of activations to int8, for lk_quantize.
#include "quantize_row.h"

#include "kernels.h"

namespace lk {
namespace LK_ISA_NS {

void quantize_row(const float* x, int32_t k, int8_t* q, float* d, float* s) {
    quantize_values(x, k, q, d, s);
}

}  // namespace LK_ISA_NS
}  // namespace lk
