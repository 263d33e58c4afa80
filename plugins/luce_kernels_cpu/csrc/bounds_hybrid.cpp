// What records of hybrid_ops.h may refer to.
#include "bounds.h"
#include "error.h"
#include "slot_segments.h"

namespace {

using i64 = long long;  // what printf calls %lld

void add_values(lk_bounds* bounds, const lk_checked_values& added) {
    for (lk_checked_values& known : bounds->values) {
        if (known.values == added.values && known.by_slot == added.by_slot) {
            lk_narrow(&known.limit, added.limit);
            return;
        }
    }
    bounds->values.push_back(added);
}

int add_slots(lk_bounds* bounds, const char* op, const lk_slots& slots) {
    if (slots.count < 1 || slots.log_rows < 1) {
        return lk_fail("%s: no state of %d slots with logs of %d rows", op, slots.count,
                       slots.log_rows);
    }
    bounds->segments = true;
    lk_narrow(&bounds->slots, slots.count);
    lk_narrow(&bounds->log_rows, slots.log_rows);
    return 0;
}

void add_accepted(lk_bounds* bounds, const int32_t* accepted, const lk_slots& slots) {
    add_values(bounds, {"accepted", accepted, static_cast<int64_t>(slots.log_rows) + 1, true});
}

int check_conv(const char* op, int32_t channels, int32_t kernel) {
    if (channels >= 1 && kernel >= 2) return 0;
    return lk_fail("%s: %d channels and a kernel of %d", op, channels, kernel);
}

int add_conv(lk_bounds* bounds, const lk_causal_conv1d_args& args) {
    if (check_conv("causal_conv1d", args.channels, args.kernel)) return -1;
    if (args.x.width != args.channels || args.out.width != args.channels) {
        return lk_fail("causal_conv1d: x of %d and out of %d do not fit %d channels", args.x.width,
                       args.out.width, args.channels);
    }
    return add_slots(bounds, "causal_conv1d", args.slots);
}

int add_conv_replay(lk_bounds* bounds, const lk_conv_replay_args& args) {
    if (check_conv("conv_replay", args.channels, args.kernel)) return -1;
    add_accepted(bounds, args.accepted, args.slots);
    return add_slots(bounds, "conv_replay", args.slots);
}

int check_shape(const char* op, const lk_delta_shape& shape) {
    if (shape.key_heads >= 1 && shape.value_heads >= 1 && shape.value_dim >= 1 &&
        shape.value_heads % shape.key_heads == 0 && shape.key_dim >= 1 &&
        shape.key_dim <= LK_MOST_KEY_DIM) {
        return 0;
    }
    return lk_fail("%s: %d key heads of %d and %d value heads of %d; keys have up to %d values", op,
                   shape.key_heads, shape.key_dim, shape.value_heads, shape.value_dim,
                   LK_MOST_KEY_DIM);
}

int add_delta(lk_bounds* bounds, const lk_gated_delta_args& args) {
    const lk_delta_shape& shape = args.shape;
    if (check_shape("gated_delta", shape)) return -1;
    const int64_t values = static_cast<int64_t>(shape.value_heads) * shape.value_dim;
    const int64_t keys = 2 * static_cast<int64_t>(shape.key_heads) * shape.key_dim;
    if (args.qkv.width != keys + values || args.out.width != values ||
        args.alpha.width != shape.value_heads || args.beta.width != shape.value_heads) {
        return lk_fail("gated_delta: qkv of %d, alpha of %d, beta of %d and out of %d do not fit "
                       "%lld + %lld values of %d heads", args.qkv.width, args.alpha.width,
                       args.beta.width, args.out.width, static_cast<i64>(keys),
                       static_cast<i64>(values), shape.value_heads);
    }
    return add_slots(bounds, "gated_delta", args.slots);
}

int add_delta_replay(lk_bounds* bounds, const lk_gated_delta_replay_args& args) {
    if (check_shape("gated_delta_replay", args.shape)) return -1;
    add_accepted(bounds, args.accepted, args.slots);
    return add_slots(bounds, "gated_delta_replay", args.slots);
}

int check_gated_norm(const lk_gated_norm_args& args) {
    if (args.group >= 1 && args.x.width % args.group == 0 && args.z.width == args.x.width &&
        args.out.width == args.x.width &&
        !lk_check_quantized(args.quantized, args.x.width, args.group)) {
        return 0;
    }
    return lk_fail("gated_norm: x of %d, z of %d and out of %d in groups of %d", args.x.width,
                   args.z.width, args.out.width, args.group);
}

int check_sigmoid_gate(const lk_sigmoid_gate_args& args) {
    if ((args.gate.width == 1 || args.gate.width == args.x.width) &&
        args.out.width == args.x.width &&
        !lk_check_quantized(args.quantized, args.x.width, args.x.width)) {
        return 0;
    }
    return lk_fail("sigmoid_gate: x of %d, gate of %d and out of %d", args.x.width,
                   args.gate.width, args.out.width);
}

int add_places(lk_bounds* bounds, const char* op, const lk_places& at, int32_t column,
               int32_t width) {
    if (at.max_rows < 1 || at.rows < 1 || column < 0 || width > at.width - column) {
        return lk_fail("%s: %d columns from %d on of %d rows of %d, %d places", op, width, column,
                       at.rows, at.width, at.max_rows);
    }
    lk_narrow(&bounds->staged_rows, at.max_rows);
    add_values(bounds, {"places", at.places, at.rows, false});
    return 0;
}

int add_put_rows(lk_bounds* bounds, const lk_put_rows_args& args) {
    return add_places(bounds, "put_rows", args.at, args.column, args.x.width);
}

int add_take_rows(lk_bounds* bounds, const lk_take_rows_args& args) {
    return add_places(bounds, "take_rows", args.at, 0, args.out.width);
}

int add_dynamic_conv(lk_bounds* bounds, const lk_dynamic_conv_args& args) {
    if (args.group < 1 || args.taps < 1 || args.side < 0 || args.side > 1 ||
        args.x.width % args.group != 0 || args.out.width != args.x.width ||
        args.delta.width != 2 * args.taps * (args.x.width / args.group)) {
        return lk_fail("dynamic_conv: x of %d, delta of %d and out of %d do not fit side %d of %d "
                       "taps in groups of %d", args.x.width, args.delta.width, args.out.width,
                       args.side, args.taps, args.group);
    }
    bounds->segments = true;
    return 0;
}

int add_ring_write(lk_bounds* bounds, const lk_ring_write_args& args) {
    lk_bounds own{};
    if (lk_add_kv_write(&own, args.write)) return -1;
    if (args.max_rows < 1) return lk_fail("ring_write: ring_rows has %d entries", args.max_rows);
    lk_narrow(&bounds->staged_rows, args.max_rows);
    add_values(bounds, {"ring_rows", args.ring_rows, own.cache_rows, false});
    return 0;
}

int add_draft_attention(lk_bounds* bounds, const lk_draft_attention_args& args) {
    const lk_cache& k = args.k_ring;
    const lk_cache& v = args.v_ring;
    if (lk_check_cache("draft_attention", "k_ring", k)) return -1;
    if (lk_check_cache("draft_attention", "v_ring", v)) return -1;
    const int64_t kv_width = static_cast<int64_t>(k.kv_heads) * k.dim;
    if (args.heads < 1 || args.heads % k.kv_heads != 0 || v.kv_heads != k.kv_heads ||
        v.dim != k.dim || v.block_size != k.block_size || v.rows != k.rows ||
        args.q.width != static_cast<int64_t>(args.heads) * k.dim || args.out.width != args.q.width ||
        args.k.width != kv_width || args.v.width != kv_width || args.window < 0 ||
        k.dim > LK_MOST_KEY_DIM) {
        return lk_fail("draft_attention: q of %d, k of %d, v of %d and out of %d do not fit %d heads "
                       "of %d over rings of %d heads", args.q.width, args.k.width, args.v.width,
                       args.out.width, args.heads, k.dim, k.kv_heads);
    }
    bounds->segments = true;
    lk_narrow(&bounds->slots, k.rows / k.block_size);
    return 0;
}

int add_noise(lk_bounds* bounds, const char* op, const lk_noise& noise) {
    if (noise.slots < 1 || noise.keys_per_slot < 1) {
        return lk_fail("%s: noise of %d slots with %d keys", op, noise.slots, noise.keys_per_slot);
    }
    bounds->segments = true;
    lk_narrow(&bounds->slots, noise.slots);
    lk_narrow(&bounds->noise_keys, noise.keys_per_slot);
    return 0;
}

int add_candidates(lk_bounds* bounds, const lk_candidate_select_args& args) {
    if (args.predecessors == nullptr || args.successors == nullptr) {
        return lk_fail("candidate_select: a codebook is NULL");
    }
    const int64_t vocabulary = lk_weight_rows(args.predecessors);
    const int64_t rank = lk_weight_columns(args.predecessors);
    if (args.logits.width != vocabulary || lk_weight_rows(args.successors) != vocabulary ||
        lk_weight_columns(args.successors) != rank || args.g.width != rank ||
        rank > LK_MOST_RANK) {
        return lk_fail("candidate_select: logits of %d and g of %d do not fit codebooks of "
                       "%lld x %lld and %lld x %lld", args.logits.width, args.g.width,
                       static_cast<i64>(vocabulary), static_cast<i64>(rank),
                       static_cast<i64>(lk_weight_rows(args.successors)),
                       static_cast<i64>(lk_weight_columns(args.successors)));
    }
    if (args.top_k < 1 || args.top_k > LK_MOST_CANDIDATES || args.top_k > vocabulary) {
        return lk_fail("candidate_select: %d candidates; 1 to %d of %lld tokens are accepted",
                       args.top_k, LK_MOST_CANDIDATES, static_cast<i64>(vocabulary));
    }
    lk_narrow(&bounds->table_rows, vocabulary);
    return add_noise(bounds, "candidate_select", args.noise);
}

int check_route(const char* op, const lk_rows& x, const lk_rows& route, int32_t top_k) {
    if (top_k >= 1 && route.width == 2 * top_k && x.width % top_k == 0) return 0;
    return lk_fail("%s: x of %d and a route of %d do not fit %d experts a row", op, x.width,
                   route.width, top_k);
}

int check_moe_route(const lk_moe_route_args& args) {
    const bool is_softplus = args.scoring == LK_SQRT_SOFTPLUS;
    if ((args.scoring != LK_SOFTMAX && !is_softplus) || (args.bias != nullptr && !is_softplus) ||
        (is_softplus && args.logits.width > LK_MOST_EXPERTS)) {
        return lk_fail("moe_route: scoring %d of %d experts%s", args.scoring, args.logits.width,
                       args.bias != nullptr ? " with a bias" : "");
    }
    if (args.top_k >= 1 && args.top_k <= LK_MOST_CANDIDATES && args.top_k <= args.logits.width &&
        args.out.width == 2 * args.top_k) {
        return 0;
    }
    return lk_fail("moe_route: %d of %d experts in rows of %d; up to %d are accepted", args.top_k,
                   args.logits.width, args.out.width, LK_MOST_CANDIDATES);
}

int check_moe_matmul(const lk_moe_matmul_args& args) {
    if (args.weight == nullptr) return lk_fail("moe_matmul: weight is NULL");
    const int64_t k = lk_weight_columns(args.weight);
    const int64_t rows = (static_cast<int64_t>(args.n) + 15) / 16 * 16 * args.experts;
    if (args.experts < 1 || args.experts > LK_MOST_RANK || args.n < 1 ||
        lk_weight_rows(args.weight) != rows || (args.inputs != 1 && args.inputs != args.top_k) ||
        args.x.width != args.inputs * k ||
        args.out.width != static_cast<int64_t>(args.top_k) * args.n) {
        return lk_fail("moe_matmul: x of %d and out of %d do not fit %d experts of %d x %lld in a "
                       "weight of %lld rows", args.x.width, args.out.width, args.experts, args.n,
                       static_cast<i64>(k), static_cast<i64>(lk_weight_rows(args.weight)));
    }
    if (args.group_rows < 0 || args.group_rows > LK_MOST_GROUP_ROWS) {
        return lk_fail("moe_matmul: groups of %d rows; up to %d are accepted", args.group_rows,
                       LK_MOST_GROUP_ROWS);
    }
    const int32_t block = lk_weight_int8_block(args.weight);
    if (block != 0 &&
        (args.xq.q == nullptr || args.xq.k != args.x.width || args.xq.block != block)) {
        return lk_fail("moe_matmul: xq: the weight reads int8 rows of %d in blocks of %d",
                       args.x.width, block);
    }
    return check_route("moe_matmul", args.out, args.route, args.top_k);
}

int check_slot_segment(const lk_bounds* bounds, const lk_batch* batch, int32_t s) {
    const lk_slot_segment segment = lk_segment_at(batch, s);
    if (segment.count > batch->max_query) {
        return lk_fail("segment %d has %d rows, max_query is %d", s, segment.count,
                       batch->max_query);
    }
    if (batch->context_lens[s] < 0 || batch->context_lens[s] > INT32_MAX - segment.count) {
        return lk_fail("context_lens[%d] must not be negative, got %d", s, batch->context_lens[s]);
    }
    if (bounds->log_rows > 0 && segment.verifies && segment.count > bounds->log_rows) {
        return lk_fail("segment %d verifies %d rows, the logs hold %lld", s, segment.count,
                       static_cast<i64>(bounds->log_rows));
    }
    if (bounds->noise_keys > 0) {
        const int32_t drafts = batch->cu_logits[s + 1] - batch->cu_logits[s];
        if (drafts > bounds->noise_keys || (drafts > 0 && segment.count == 0)) {
            return lk_fail("segment %d has %d rows and %d logits, its slot has keys for %lld", s,
                           segment.count, drafts, static_cast<i64>(bounds->noise_keys));
        }
    }
    for (const lk_checked_values& values : bounds->values) {
        if (!values.by_slot || !segment.verifies) continue;
        const int32_t value = values.values[segment.slot];
        if (value < 0 || value >= values.limit || value > segment.count) {
            return lk_fail("%s[%d] must be in 0..%d, got %d", values.name, segment.slot,
                           segment.count, value);
        }
    }
    return 0;
}

}  // namespace

int lk_bounds_add_hybrid(lk_bounds* bounds, int32_t op, const void* args) {
    switch (op) {
        case LK_OP_CAUSAL_CONV1D:
            return add_conv(bounds, *static_cast<const lk_causal_conv1d_args*>(args));
        case LK_OP_CONV_REPLAY:
            return add_conv_replay(bounds, *static_cast<const lk_conv_replay_args*>(args));
        case LK_OP_GATED_DELTA:
            return add_delta(bounds, *static_cast<const lk_gated_delta_args*>(args));
        case LK_OP_GATED_DELTA_REPLAY:
            return add_delta_replay(bounds, *static_cast<const lk_gated_delta_replay_args*>(args));
        case LK_OP_GATED_NORM:
            return check_gated_norm(*static_cast<const lk_gated_norm_args*>(args));
        case LK_OP_SIGMOID_GATE:
            return check_sigmoid_gate(*static_cast<const lk_sigmoid_gate_args*>(args));
        case LK_OP_PUT_ROWS:
            return add_put_rows(bounds, *static_cast<const lk_put_rows_args*>(args));
        case LK_OP_TAKE_ROWS:
            return add_take_rows(bounds, *static_cast<const lk_take_rows_args*>(args));
        case LK_OP_DYNAMIC_CONV:
            return add_dynamic_conv(bounds, *static_cast<const lk_dynamic_conv_args*>(args));
        case LK_OP_RING_WRITE:
            return add_ring_write(bounds, *static_cast<const lk_ring_write_args*>(args));
        case LK_OP_DRAFT_ATTENTION:
            return add_draft_attention(bounds, *static_cast<const lk_draft_attention_args*>(args));
        case LK_OP_DRAFT_DRAW:
            return add_noise(bounds, "draft_draw",
                             static_cast<const lk_draft_draw_args*>(args)->noise);
        case LK_OP_CANDIDATE_SELECT:
            return add_candidates(bounds, *static_cast<const lk_candidate_select_args*>(args));
        case LK_OP_MOE_ROUTE: return check_moe_route(*static_cast<const lk_moe_route_args*>(args));
        case LK_OP_MOE_MATMUL:
            return check_moe_matmul(*static_cast<const lk_moe_matmul_args*>(args));
        case LK_OP_MOE_SUM: {
            const auto& sum = *static_cast<const lk_moe_sum_args*>(args);
            return check_route("moe_sum", sum.x, sum.route, sum.top_k);
        }
        case LK_OP_MOE_SCALE: {
            const auto& scale = *static_cast<const lk_moe_scale_args*>(args);
            return check_route("moe_scale", scale.x, scale.route, scale.top_k);
        }
        default: return lk_bounds_add_deepseek(bounds, op, args);
    }
}

int lk_check_hybrid(const lk_bounds* bounds, const lk_batch* batch) {
    if (bounds->staged_rows > 0 && batch->rows > bounds->staged_rows) {
        return lk_fail("rows is %d, but the buffers that the host fills hold %lld", batch->rows,
                       static_cast<i64>(bounds->staged_rows));
    }
    for (const lk_checked_values& values : bounds->values) {
        if (!values.by_slot &&
            lk_check_within(values.name, values.values, batch->rows, values.limit)) {
            return -1;
        }
    }
    if (!bounds->segments) return 0;
    if (bounds->slots > 0 &&
        lk_check_within("slot_ids", batch->slot_ids, batch->segments, bounds->slots)) {
        return -1;
    }
    if (bounds->noise_keys > 0 &&
        lk_check_starts("cu_logits", batch->cu_logits, batch->segments, batch->logits)) {
        return -1;
    }
    for (int32_t s = 0; s < batch->segments; ++s) {
        if (check_slot_segment(bounds, batch, s)) return -1;
    }
    return 0;
}
