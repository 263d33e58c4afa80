// What records of fused_ops.h may refer to.
#include "bounds.h"
#include "error.h"

namespace {

using i64 = long long;  // what printf calls %lld

int check_projection(const char* op, const lk_rows& x, const lk_projection& projection,
                     int64_t width) {
    if (projection.weight == nullptr) return lk_fail("%s: weight is NULL", op);
    const int64_t n = lk_weight_rows(projection.weight);
    const int64_t k = lk_weight_columns(projection.weight);
    if (x.width != k || width != n) {
        return lk_fail("%s: x of %d and out of %lld do not fit a weight of %lld x %lld", op,
                       x.width, static_cast<i64>(width), static_cast<i64>(n),
                       static_cast<i64>(k));
    }
    return lk_check_read(op, projection.weight, x, projection.xq);
}

int add_gate_up(const lk_gate_up_args& args) {
    if (check_projection("gate_up", args.x, args.gate, args.out.width)) return -1;
    if (check_projection("gate_up", args.x, args.up, args.out.width)) return -1;
    if (args.quantized.q != nullptr &&
        (args.out.width % 32 != 0 || args.quantized.k != args.out.width)) {
        return lk_fail("gate_up: quantized rows of %d do not fit out of %d", args.quantized.k,
                       args.out.width);
    }
    return 0;
}

}  // namespace

int lk_bounds_add_fused(lk_bounds*, int32_t op, const void* args) {
    switch (op) {
        case LK_OP_GATE_UP: return add_gate_up(*static_cast<const lk_gate_up_args*>(args));
        default: return lk_fail("op %d is no fused one", op);
    }
}
