// Rotary position embedding of rows.
#include "rope_row.h"
#include "row_kernels.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {

void rope(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_rope_args& args = *(const lk_rope_args*)record;
    const lk_range share = lk_share((int64_t)batch->rows * args.heads, worker);
    row_turns known;
    for (int64_t unit = share.begin; unit < share.end; unit++) {
        const int64_t row = unit / args.heads, head = unit % args.heads * args.dim;
        rope_head(args, batch, row, &known, args.x.data + row * args.x.stride + head,
                  args.out.data + row * args.out.stride + head);
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
