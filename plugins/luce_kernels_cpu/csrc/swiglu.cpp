// silu(gate) * up, with an optional limit and int8 form of the result.
#include "quantize_row.h"
#include "row_kernels.h"
#include "split.h"
#include "swiglu_row.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

// Columns of a unit of work: whole quant blocks.
constexpr int CHUNK = 256;

}  // namespace

void swiglu(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_swiglu_args& args = *(const lk_swiglu_args*)record;
    const int width = args.gate.width;
    const int64_t chunks = (width + CHUNK - 1) / CHUNK;
    const lk_range share = lk_share(lk_row_count(&args.gate, batch) * chunks, worker);
    float chunk[CHUNK];
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int64_t row = unit / chunks, at = unit % chunks * CHUNK;
        const int n = (int)(width - at < CHUNK ? width - at : CHUNK);
        float* out = args.out.data ? args.out.data + row * args.out.stride + at : chunk;
        gate_values(args.gate.data + row * args.gate.stride + at,
                    args.up.data + row * args.up.stride + at, args.limit, n, out);
        if (args.quantized.q) quantize_values(args.quantized, out, row, at, n);
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
