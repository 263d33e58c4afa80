// lk_quantize: each worker takes whole pieces of rows, so that one long row is shared too.
#include "kernels.h"
#include "luce_kernels.h"

namespace lk {
namespace {

constexpr int64_t PIECE = 2 * SUPER;  // values that one worker takes at a time

}  // namespace

QuantizeRow find_quantize_row(Isa isa) {
    switch (isa) {
        case Isa::AVX2: return avx2::quantize_row;
        case Isa::AVX512: return avx512::quantize_row;
        default: return avx512_vnni::quantize_row;
    }
}

}  // namespace lk

void lk_quantize(const void* args, const lk_batch* batch, lk_worker* worker) {
    using namespace lk;
    const auto& a = *static_cast<const lk_quantize_args*>(args);
    const QuantizeRow quantize = find_quantize_row(current_isa());
    const int64_t k = a.out.k, pieces = (k + PIECE - 1) / PIECE;
    const int64_t all = lk_row_count(&a.x, batch) * pieces;
    const int64_t first = all * worker->index / worker->count;
    const int64_t last = all * (worker->index + 1) / worker->count;
    for (int64_t i = first; i < last; ++i) {
        const int64_t row = i / pieces, at = i % pieces * PIECE;
        const int64_t size = at + PIECE < k ? PIECE : k - at;
        quantize(a.out, a.x.data + row * a.x.stride + at, row, at, int32_t(size));
    }
}
