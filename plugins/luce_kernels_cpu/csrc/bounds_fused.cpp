// What records of fused_ops.h may refer to.
#include "bounds.h"
#include "error.h"

namespace {

using i64 = long long;  // what printf calls %lld
constexpr int32_t kTile = 16;

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
    if (lk_check_quantized(args.quantized, args.out.width, args.out.width)) {
        return lk_fail("gate_up: quantized rows of %d do not fit out of %d", args.quantized.k,
                       args.out.width);
    }
    return 0;
}

int check_turns(const char* op, int32_t pairs, int32_t interleaved, const lk_rows& turns) {
    if (pairs >= 1 && turns.width == 2 * LK_TURN_WIDTH(pairs, interleaved)) return 0;
    return lk_fail("%s: turns of %d do not fit %d pairs", op, turns.width, pairs);
}

int add_turns(lk_bounds* bounds, const lk_turns_args& args) {
    bounds->positions = true;
    return check_turns("turns", args.pairs, args.interleaved, args.out);
}

int add_project_heads(lk_bounds* bounds, const lk_project_heads_args& args) {
    const char* op = "project_heads";
    const lk_rope_write_args& heads = args.heads;
    if (lk_bounds_add(bounds, LK_OP_ROPE_WRITE, &heads)) return -1;
    if (check_projection(op, args.x, args.q, heads.q.out.width)) return -1;
    if (check_projection(op, args.x, args.k, heads.k.x.width)) return -1;
    if (check_projection(op, args.x, args.v, heads.v.width)) return -1;
    if (heads.q.dim % kTile != 0 || heads.k.dim % kTile != 0 || heads.v_cache.dim % kTile != 0) {
        return lk_fail("%s: heads of %d, %d and %d are not of whole tiles of %d", op, heads.q.dim,
                       heads.k.dim, heads.v_cache.dim, kTile);
    }
    if (heads.q.x.data != heads.q.out.data || args.arrived == nullptr) {
        return lk_fail("%s: q is turned in place, and workers must be counted", op);
    }
    if (check_turns(op, heads.q.pairs, heads.q.interleaved, args.turns)) return -1;
    return check_turns(op, heads.k.pairs, heads.k.interleaved, args.turns);
}

int add_head_token(const lk_head_token_args& args) {
    if (args.head.weight == nullptr) return lk_fail("head_token: weight is NULL");
    const int64_t n = lk_weight_rows(args.head.weight);
    if (check_projection("head_token", args.x, args.head, n)) return -1;
    if (args.logits.data != nullptr && args.logits.width != n) {
        return lk_fail("head_token: logits of %d do not fit %lld tokens", args.logits.width,
                       static_cast<i64>(n));
    }
    if (n < 1 || n > INT32_MAX || args.best == nullptr || args.arrived == nullptr) {
        return lk_fail("head_token: %lld tokens, or nowhere to count", static_cast<i64>(n));
    }
    return 0;
}

}  // namespace

int lk_bounds_add_fused(lk_bounds* bounds, int32_t op, const void* args) {
    switch (op) {
        case LK_OP_GATE_UP: return add_gate_up(*static_cast<const lk_gate_up_args*>(args));
        case LK_OP_TURNS: return add_turns(bounds, *static_cast<const lk_turns_args*>(args));
        case LK_OP_PROJECT_HEADS:
            return add_project_heads(bounds, *static_cast<const lk_project_heads_args*>(args));
        default: return add_head_token(*static_cast<const lk_head_token_args*>(args));
    }
}
