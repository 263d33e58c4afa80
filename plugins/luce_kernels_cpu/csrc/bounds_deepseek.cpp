// What records of deepseek_ops.h may refer to.
#include "bounds.h"
#include "error.h"

namespace {

constexpr int32_t MOST_PAIRS = 256;  // turned at once

int check_entries(const char* op, const lk_cache& cache, int32_t ratio) {
    if (lk_check_cache(op, "cache", cache)) return -1;
    if (ratio >= 1 && LK_ENTRY_TOKENS % ratio == 0 && cache.kv_heads == 1 &&
        cache.block_size == LK_ENTRY_TOKENS / ratio && cache.dim <= LK_MOST_ENTRY_DIM) {
        return 0;
    }
    return lk_fail("%s: blocks of %d entries of %d x %d do not fit a ratio of %d; entries have up to "
                   "%d values", op, cache.block_size, cache.kv_heads, cache.dim, ratio,
                   LK_MOST_ENTRY_DIM);
}

int add_blocks(lk_bounds* bounds, const char* op, const lk_cache& cache) {
    if (bounds->block_size != 0 && bounds->block_size != LK_ENTRY_TOKENS) {
        return lk_fail("%s: blocks of %d tokens, another cache has %d", op, LK_ENTRY_TOKENS,
                       bounds->block_size);
    }
    bounds->block_size = LK_ENTRY_TOKENS;
    bounds->positions = true;
    lk_narrow(&bounds->cache_blocks, cache.rows / cache.block_size);
    return 0;
}

int add_ring(lk_bounds* bounds, const char* op, const lk_cache& ring) {
    if (lk_check_cache(op, "ring", ring)) return -1;
    if (ring.kv_heads != 1 || ring.dim > LK_MOST_ENTRY_DIM || ring.type == LK_Q8_0 ||
        ring.type == LK_Q4_0) {
        return lk_fail("%s: a ring of %d x %d of type %d; one head of up to %d plain values is "
                       "accepted", op, ring.kv_heads, ring.dim, ring.type, LK_MOST_ENTRY_DIM);
    }
    bounds->segments = bounds->positions = true;
    lk_narrow(&bounds->slots, ring.rows / ring.block_size);
    return 0;
}

int check_turns(const char* op, int32_t pairs, int32_t dim) {
    if (pairs >= 1 && pairs <= MOST_PAIRS && 2 * pairs <= dim) return 0;
    return lk_fail("%s: %d pairs of %d values; up to %d turn", op, pairs, dim, MOST_PAIRS);
}

int add_tail_rope(lk_bounds* bounds, const lk_tail_rope_args& args) {
    if (args.heads < 1 || args.x.width != args.heads * args.dim || args.out.width != args.x.width) {
        return lk_fail("tail_rope: x of %d and out of %d do not fit %d heads of %d", args.x.width,
                       args.out.width, args.heads, args.dim);
    }
    bounds->positions = true;
    return check_turns("tail_rope", args.pairs, args.dim);
}

int add_window_write(lk_bounds* bounds, const lk_window_write_args& args) {
    if (args.kv.width != args.ring.dim) {
        return lk_fail("window_write: kv of %d does not fit a ring of %d", args.kv.width,
                       args.ring.dim);
    }
    return add_ring(bounds, "window_write", args.ring);
}

int add_compress(lk_bounds* bounds, const lk_compress_kv_args& args) {
    if (check_entries("compress_kv", args.cache, args.ratio)) return -1;
    if (check_turns("compress_kv", args.pairs, args.cache.dim)) return -1;
    const int32_t width = args.series * args.cache.dim;
    if (args.series < 1 || args.series > 2 || args.values.width != width ||
        args.gates.width != width || args.slots.count < 1) {
        return lk_fail("compress_kv: values of %d and gates of %d do not fit %d series of %d for %d "
                       "slots", args.values.width, args.gates.width, args.series, args.cache.dim,
                       args.slots.count);
    }
    bounds->segments = bounds->positions = true;
    lk_narrow(&bounds->slots, args.slots.count);
    lk_narrow(&bounds->cache_rows, args.cache.rows * args.ratio);
    return 0;
}

int add_index(lk_bounds* bounds, const lk_index_topk_args& args) {
    if (check_entries("index_topk", args.cache, args.ratio)) return -1;
    if (args.heads < 1 || args.q.width != static_cast<int64_t>(args.heads) * args.cache.dim ||
        args.weights.width != args.heads || args.out.width != args.top_k || args.top_k < 1 ||
        args.top_k > LK_MOST_PICKS) {
        return lk_fail("index_topk: q of %d, weights of %d and out of %d do not fit %d heads of %d "
                       "and %d picks; up to %d are accepted", args.q.width, args.weights.width,
                       args.out.width, args.heads, args.cache.dim, args.top_k, LK_MOST_PICKS);
    }
    return add_blocks(bounds, "index_topk", args.cache);
}

int add_attention(lk_bounds* bounds, const lk_entry_attention_args& args) {
    const int32_t dim = args.ring.dim;
    if (add_ring(bounds, "entry_attention", args.ring)) return -1;
    if (args.heads < 1 || args.q.width != static_cast<int64_t>(args.heads) * dim ||
        args.out.width != args.q.width || args.window < 1 || args.window > args.ring.block_size) {
        return lk_fail("entry_attention: q of %d and out of %d do not fit %d heads of %d over %d of "
                       "a ring of %d", args.q.width, args.out.width, args.heads, dim, args.window,
                       args.ring.block_size);
    }
    if (args.ratio == 0) return 0;
    if (check_entries("entry_attention", args.cache, args.ratio)) return -1;
    if (args.cache.dim != dim) {
        return lk_fail("entry_attention: entries of %d and a ring of %d", args.cache.dim, dim);
    }
    return add_blocks(bounds, "entry_attention", args.cache);
}

int check_group_route(const lk_group_route_args& args) {
    if (args.groups >= 1 && args.out.width == 2 * args.groups) return 0;
    return lk_fail("group_route: out of %d for %d groups", args.out.width, args.groups);
}

int add_route_by_token(lk_bounds* bounds, const lk_route_by_token_args& args) {
    if (args.table == nullptr || args.vocabulary < 1 || args.top_k < 1 ||
        args.top_k > args.logits.width || args.out.width != 2 * args.top_k) {
        return lk_fail("route_by_token: logits of %d and out of %d do not fit %d experts a row",
                       args.logits.width, args.out.width, args.top_k);
    }
    lk_narrow(&bounds->table_rows, args.vocabulary);
    return 0;
}

int check_streams(const char* op, int32_t streams) {
    if (streams >= 1 && streams <= LK_MOST_STREAMS) return 0;
    return lk_fail("%s: %d streams; 1 to %d are accepted", op, streams, LK_MOST_STREAMS);
}

int check_mix(const lk_hyper_mix_args& args) {
    if (check_streams("hyper_mix", args.streams)) return -1;
    const int32_t width = args.head ? args.streams : args.streams * (2 + args.streams);
    if (args.out.width == width && args.x.width % args.streams == 0) return 0;
    return lk_fail("hyper_mix: x of %d and out of %d do not fit %d streams with %d coefficients",
                   args.x.width, args.out.width, args.streams, width);
}

int check_widths(const char* op, int32_t streams, const lk_rows& wide, const lk_rows& narrow,
                 const lk_rows* mix, int32_t coefficients) {
    if (check_streams(op, streams)) return -1;
    if (wide.width == static_cast<int64_t>(streams) * narrow.width &&
        (mix == nullptr || mix->width >= coefficients)) {
        return 0;
    }
    return lk_fail("%s: rows of %d and %d and coefficients of %d do not fit %d streams", op,
                   wide.width, narrow.width, mix == nullptr ? 0 : mix->width, streams);
}

int check_spread(const lk_hyper_spread_args& args) {
    const int32_t n = args.streams;
    if (check_widths("hyper_spread", n, args.x, args.y, &args.mix, n * (2 + n))) return -1;
    if (args.out.width == args.x.width) return 0;
    return lk_fail("hyper_spread: x of %d and out of %d differ", args.x.width, args.out.width);
}

}  // namespace

int lk_bounds_add_deepseek(lk_bounds* bounds, int32_t op, const void* args) {
    switch (op) {
        case LK_OP_TAIL_ROPE:
            return add_tail_rope(bounds, *static_cast<const lk_tail_rope_args*>(args));
        case LK_OP_WINDOW_WRITE:
            return add_window_write(bounds, *static_cast<const lk_window_write_args*>(args));
        case LK_OP_COMPRESS_KV:
            return add_compress(bounds, *static_cast<const lk_compress_kv_args*>(args));
        case LK_OP_INDEX_TOPK:
            return add_index(bounds, *static_cast<const lk_index_topk_args*>(args));
        case LK_OP_ENTRY_ATTENTION:
            return add_attention(bounds, *static_cast<const lk_entry_attention_args*>(args));
        case LK_OP_GROUP_ROUTE:
            return check_group_route(*static_cast<const lk_group_route_args*>(args));
        case LK_OP_ROUTE_BY_TOKEN:
            return add_route_by_token(bounds, *static_cast<const lk_route_by_token_args*>(args));
        case LK_OP_HYPER_BEGIN: {
            const auto& begin = *static_cast<const lk_hyper_begin_args*>(args);
            return check_widths("hyper_begin", begin.streams, begin.out, begin.x, nullptr, 0);
        }
        case LK_OP_HYPER_MIX: return check_mix(*static_cast<const lk_hyper_mix_args*>(args));
        case LK_OP_HYPER_MERGE: {
            const auto& merge = *static_cast<const lk_hyper_merge_args*>(args);
            return check_widths("hyper_merge", merge.streams, merge.x, merge.out, &merge.mix,
                                merge.streams);
        }
        case LK_OP_HYPER_SPREAD:
            return check_spread(*static_cast<const lk_hyper_spread_args*>(args));
        default: return 0;
    }
}
