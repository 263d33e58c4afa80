#include "bounds.h"

#include "error.h"

namespace {

using i64 = long long;  // what printf calls %lld

}  // namespace

void lk_narrow(int64_t* limit, int64_t value) {
    if (*limit == 0 || value < *limit) *limit = value;
}

int lk_check_cache(const char* op, const char* side, const lk_cache& cache) {
    if (cache.data == nullptr || cache.type < LK_F32 || cache.type > LK_Q4_0 ||
        cache.kv_heads < 1 || cache.dim < 1 || cache.block_size < 1 ||
        cache.rows < cache.block_size || cache.rows % cache.block_size != 0) {
        return lk_fail("%s: %s: no cache of type %d, %d heads of %d, %lld rows in blocks of %d", op,
                       side, cache.type, cache.kv_heads, cache.dim,
                       static_cast<i64>(cache.rows), cache.block_size);
    }
    if ((cache.type == LK_Q8_0 || cache.type == LK_Q4_0) && cache.dim % 32 != 0) {
        return lk_fail("%s: %s: a quantised cache needs heads of whole blocks of 32, got %d", op,
                       side, cache.dim);
    }
    return 0;
}

int lk_check_read(const char* op, const lk_weight* weight, const lk_rows& x,
                  const lk_quantized& xq) {
    const int64_t k = lk_weight_columns(weight);
    const int32_t block = lk_weight_int8_block(weight);
    if (block != 0) {
        if (xq.q != nullptr && xq.k == k && xq.block == block) return 0;
        return lk_fail("%s: xq: the weight reads int8 rows of %lld in blocks of %d", op,
                       static_cast<i64>(k), block);
    }
    if (x.data != nullptr || (x.domain == LK_ROWS_FIXED && x.rows == 0)) return 0;
    return lk_fail("%s: x: the weight reads float rows", op);
}

bool lk_check_quantized(const lk_quantized& quantized, int32_t width, int32_t group) {
    if (quantized.q == nullptr) return false;
    const int32_t block = quantized.block;
    return (block != 32 && block != 256) || group % block != 0 || quantized.k != width;
}

int lk_check_starts(const char* name, const int32_t* starts, int32_t segments, int32_t total) {
    if (starts[0] != 0) return lk_fail("%s[0] must be 0, got %d", name, starts[0]);
    for (int32_t s = 0; s < segments; ++s) {
        if (starts[s + 1] < starts[s]) {
            return lk_fail("%s[%d] = %d is less than the %d before it", name, s + 1,
                           starts[s + 1], starts[s]);
        }
    }
    if (starts[segments] != total) {
        return lk_fail("%s must end at %d, got %d", name, total, starts[segments]);
    }
    return 0;
}

int lk_check_within(const char* name, const int32_t* values, int32_t count, int64_t limit) {
    // One unsigned comparison per value, no branch: this is on every step's path.
    uint32_t wrong = 0;
    const uint32_t end = limit > INT32_MAX ? INT32_MAX : static_cast<uint32_t>(limit);
    for (int32_t i = 0; i < count; ++i) wrong |= static_cast<uint32_t>(values[i]) >= end;
    if (wrong == 0) return 0;
    for (int32_t i = 0;; ++i) {
        if (static_cast<uint32_t>(values[i]) >= end) {
            return lk_fail("%s[%d] must be in 0..%lld, got %d", name, i,
                           static_cast<i64>(limit) - 1, values[i]);
        }
    }
}

namespace {

int add_cache(lk_bounds* bounds, const char* op, const char* side, const lk_cache& cache) {
    if (lk_check_cache(op, side, cache)) return -1;
    if (bounds->block_size != 0 && bounds->block_size != cache.block_size) {
        return lk_fail("%s: %s: block_size %d differs from %d of another cache", op, side,
                       cache.block_size, bounds->block_size);
    }
    bounds->block_size = cache.block_size;
    return 0;
}

}  // namespace

int lk_add_kv_write(lk_bounds* bounds, const lk_kv_write_args& write) {
    if (add_cache(bounds, "kv_write", "k_cache", write.k_cache)) return -1;
    if (add_cache(bounds, "kv_write", "v_cache", write.v_cache)) return -1;
    if (write.k.width != write.k_cache.kv_heads * write.k_cache.dim ||
        write.v.width != write.v_cache.kv_heads * write.v_cache.dim) {
        return lk_fail("kv_write: k and v of width %d and %d do not fit caches of %d x %d and %d x %d",
                       write.k.width, write.v.width, write.k_cache.kv_heads, write.k_cache.dim,
                       write.v_cache.kv_heads, write.v_cache.dim);
    }
    lk_narrow(&bounds->cache_rows, write.k_cache.rows);
    lk_narrow(&bounds->cache_rows, write.v_cache.rows);
    return 0;
}

namespace {

int add_attention(lk_bounds* bounds, const lk_attention_args& attention) {
    const lk_cache& k = attention.k_cache;
    const lk_cache& v = attention.v_cache;
    if (add_cache(bounds, "attention", "k_cache", k)) return -1;
    if (add_cache(bounds, "attention", "v_cache", v)) return -1;
    if (attention.heads < 1 || k.kv_heads != v.kv_heads || k.dim != v.dim ||
        attention.heads % k.kv_heads != 0 || attention.q.width != attention.heads * k.dim ||
        attention.out.width != attention.q.width) {
        return lk_fail("attention: q of %d and out of %d do not fit %d heads of %d over %d KV heads",
                       attention.q.width, attention.out.width, attention.heads, k.dim, k.kv_heads);
    }
    if (lk_check_quantized(attention.quantized, attention.q.width, k.dim)) {
        return lk_fail("attention: quantized rows of %d in blocks of %d do not fit %d heads of %d",
                       attention.quantized.k, attention.quantized.block, attention.heads, k.dim);
    }
    lk_narrow(&bounds->cache_blocks, k.rows / k.block_size);
    lk_narrow(&bounds->cache_blocks, v.rows / v.block_size);
    bounds->positions = true;
    return 0;
}

int add_matmul(const lk_matmul_args& matmul) {
    if (matmul.weight == nullptr) return lk_fail("matmul: weight is NULL");
    const int64_t n = lk_weight_rows(matmul.weight), k = lk_weight_columns(matmul.weight);
    if (matmul.x.width != k || (matmul.out.data != nullptr && matmul.out.width != n)) {
        return lk_fail("matmul: x of %d and out of %d do not fit a weight of %lld x %lld",
                       matmul.x.width, matmul.out.width, static_cast<i64>(n), static_cast<i64>(k));
    }
    return lk_check_read("matmul", matmul.weight, matmul.x, matmul.xq);
}

int check_int8(const char* op, const lk_quantized& quantized, int32_t width, int32_t group) {
    if (!lk_check_quantized(quantized, width, group)) return 0;
    return lk_fail("%s: int8 rows of %d in blocks of %d do not fit rows of %d, done %d at a time",
                   op, quantized.k, quantized.block, width, group);
}

int add_embedding(lk_bounds* bounds, const lk_embedding_args& embedding) {
    if (embedding.table == nullptr) return lk_fail("embedding: table is NULL");
    if (embedding.out.width != lk_weight_columns(embedding.table)) {
        return lk_fail("embedding: out of %d does not fit rows of %lld", embedding.out.width,
                       static_cast<i64>(lk_weight_columns(embedding.table)));
    }
    lk_narrow(&bounds->table_rows, lk_weight_rows(embedding.table));
    return 0;
}

int add_rope(lk_bounds* bounds, const lk_rope_args& rope) {
    if (rope.heads < 1 || rope.dim < 1 || rope.pairs < 1 || 2 * rope.pairs > rope.dim ||
        rope.x.width != rope.heads * rope.dim || rope.out.width != rope.x.width) {
        return lk_fail("rope: x of %d does not fit %d heads of %d with %d pairs", rope.x.width,
                       rope.heads, rope.dim, rope.pairs);
    }
    bounds->positions = true;
    return 0;
}

int add_rope_write(lk_bounds* bounds, const lk_rope_write_args& args) {
    lk_rope_args k = args.k;
    k.out = k.x;
    if (add_rope(bounds, args.q) || add_rope(bounds, k)) return -1;
    if (k.heads != args.k_cache.kv_heads || k.dim != args.k_cache.dim ||
        args.v_cache.kv_heads != args.k_cache.kv_heads) {
        return lk_fail("rope_write: k of %d heads of %d does not fit caches of %d x %d and %d heads",
                       k.heads, k.dim, args.k_cache.kv_heads, args.k_cache.dim,
                       args.v_cache.kv_heads);
    }
    return lk_add_kv_write(bounds, {k.x, args.v, args.k_cache, args.v_cache});
}

int check_segment(const lk_bounds* bounds, const lk_batch* batch, int32_t s) {
    const int32_t first = batch->cu_seqlens[s], count = batch->cu_seqlens[s + 1] - first;
    const int64_t keys = static_cast<int64_t>(batch->context_lens[s]) + count;
    if (batch->context_lens[s] < 0) {
        return lk_fail("context_lens[%d] must not be negative, got %d", s, batch->context_lens[s]);
    }
    if (count > batch->max_query || keys > batch->max_context) {
        return lk_fail("segment %d has %d rows and %lld keys, max_query is %d, max_context %d", s,
                       count, static_cast<i64>(keys), batch->max_query, batch->max_context);
    }
    const int64_t blocks = (keys + bounds->block_size - 1) / bounds->block_size;
    if (blocks > batch->table_stride) {
        return lk_fail("block_tables[%d] has %d entries, %lld keys need %lld", s,
                       batch->table_stride, static_cast<i64>(keys), static_cast<i64>(blocks));
    }
    const int32_t* table = batch->block_tables + static_cast<int64_t>(s) * batch->table_stride;
    char name[32];
    __builtin_snprintf(name, sizeof name, "block_tables[%d]", s);
    if (lk_check_within(name, table, static_cast<int32_t>(blocks), bounds->cache_blocks)) return -1;
    for (int32_t row = first; row < first + count; ++row) {
        if (batch->positions[row] >= keys) {
            return lk_fail("positions[%d] = %d, but its segment has %lld keys", row,
                           batch->positions[row], static_cast<i64>(keys));
        }
        if (row > first && batch->positions[row] < batch->positions[row - 1]) {
            return lk_fail("positions[%d] = %d is less than the %d before it in its segment", row,
                           batch->positions[row], batch->positions[row - 1]);
        }
    }
    return 0;
}

int check_counts(const lk_bounds* bounds, const lk_batch* batch) {
    const lk_limits& most = bounds->limits;
    const struct { const char* name; int32_t value, limit; } counts[] = {
        {"rows", batch->rows, most.rows},
        {"logits", batch->logits, most.logits},
        {"segments", batch->segments, most.segments},
    };
    for (const auto& count : counts) {
        if (count.value < 0) return lk_fail("%s must not be negative, got %d", count.name, count.value);
        if (count.limit > 0 && count.value > count.limit) {
            return lk_fail("%s is %d, but the tape's buffers hold %d", count.name, count.value,
                           count.limit);
        }
    }
    return 0;
}

}  // namespace

int lk_bounds_add(lk_bounds* bounds, int32_t op, const void* args) {
    switch (op) {
        case LK_OP_QUANTIZE: {
            const auto& quantize = *static_cast<const lk_quantize_args*>(args);
            return check_int8("quantize", quantize.out, quantize.x.width, quantize.x.width);
        }
        case LK_OP_NORM: {
            const auto& norm = *static_cast<const lk_norm_args*>(args);
            return check_int8("norm", norm.quantized, norm.x.width, norm.group);
        }
        case LK_OP_SWIGLU: {
            const auto& swiglu = *static_cast<const lk_swiglu_args*>(args);
            return check_int8("swiglu", swiglu.quantized, swiglu.gate.width, swiglu.gate.width);
        }
        case LK_OP_MATMUL: return add_matmul(*static_cast<const lk_matmul_args*>(args));
        case LK_OP_EMBEDDING:
            return add_embedding(bounds, *static_cast<const lk_embedding_args*>(args));
        case LK_OP_ROPE: return add_rope(bounds, *static_cast<const lk_rope_args*>(args));
        case LK_OP_KV_WRITE:
            return lk_add_kv_write(bounds, *static_cast<const lk_kv_write_args*>(args));
        case LK_OP_ROPE_WRITE:
            return add_rope_write(bounds, *static_cast<const lk_rope_write_args*>(args));
        case LK_OP_ATTENTION:
            return add_attention(bounds, *static_cast<const lk_attention_args*>(args));
        case LK_OP_GATHER: bounds->logit_rows = true; return 0;
        case LK_OP_GATE_UP:
        case LK_OP_TURNS:
        case LK_OP_PROJECT_HEADS:
        case LK_OP_HEAD_TOKEN: return lk_bounds_add_fused(bounds, op, args);
        default: return lk_bounds_add_hybrid(bounds, op, args);
    }
}

int lk_check_batch(const lk_bounds* bounds, const lk_batch* batch) {
    if (check_counts(bounds, batch)) return -1;
    if (bounds->table_rows > 0 &&
        lk_check_within("token_ids", batch->token_ids, batch->rows, bounds->table_rows)) {
        return -1;
    }
    if (bounds->positions &&
        lk_check_within("positions", batch->positions, batch->rows, INT32_MAX)) {
        return -1;
    }
    if (bounds->cache_rows > 0 &&
        lk_check_within("kv_rows", batch->kv_rows, batch->rows, bounds->cache_rows)) {
        return -1;
    }
    if (bounds->logit_rows &&
        lk_check_within("logit_rows", batch->logit_rows, batch->logits, batch->rows)) {
        return -1;
    }
    if (bounds->cache_blocks == 0 && !bounds->segments) return lk_check_hybrid(bounds, batch);
    if (lk_check_starts("cu_seqlens", batch->cu_seqlens, batch->segments, batch->rows)) return -1;
    if (batch->num_prefill < 0 || batch->num_prefill > batch->segments ||
        batch->prefill_rows != batch->cu_seqlens[batch->num_prefill]) {
        return lk_fail("num_prefill %d and prefill_rows %d do not fit cu_seqlens",
                       batch->num_prefill, batch->prefill_rows);
    }
    for (int32_t s = 0; bounds->cache_blocks > 0 && s < batch->segments; ++s) {
        if (check_segment(bounds, batch, s)) return -1;
    }
    return lk_check_hybrid(bounds, batch);
}
