// Rows of activations to int8, for lk_quantize.
#include "quantize_row.h"

#include "kernels.h"

namespace lk {
namespace LK_ISA_NS {

void quantize_row(const lk_quantized& to, const float* x, int64_t row, int64_t at, int32_t n) {
    quantize_values(to, x, row, at, n);
}

}  // namespace LK_ISA_NS
}  // namespace lk
