// Keys and values of a step's rows into the cache.
#include "cache_encode.h"
#include "row_kernels.h"

namespace lk {
namespace LK_ISA_NS {

void kv_write(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_kv_write_args& args = *(const lk_kv_write_args*)record;
    each_cache_head(args.k_cache, batch, worker, [&](int64_t row, int32_t head) {
        encode_head(args.k_cache, args.k, batch, row, head);
        encode_head(args.v_cache, args.v, batch, row, head);
    });
}

}  // namespace LK_ISA_NS
}  // namespace lk
