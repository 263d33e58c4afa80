// A step as a list of records, run as one parallel region.
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "ahead.h"
#include "bounds.h"
#include "error.h"
#include "luce_kernels.h"
#include "pool.h"

namespace {

struct Op {
    const char* name;
    lk_kernel kernel;
    int64_t args_bytes;
};

// In the order of the LK_OP_ enumeration.
const Op kOps[LK_OP_COUNT] = {
    {"quantize", lk_quantize, sizeof(lk_quantize_args)},
    {"matmul", lk_matmul, sizeof(lk_matmul_args)},
    {"norm", lk_norm, sizeof(lk_norm_args)},
    {"rope", lk_rope, sizeof(lk_rope_args)},
    {"kv_write", lk_kv_write, sizeof(lk_kv_write_args)},
    {"attention", lk_attention, sizeof(lk_attention_args)},
    {"swiglu", lk_swiglu, sizeof(lk_swiglu_args)},
    {"add", lk_add, sizeof(lk_add_args)},
    {"embedding", lk_embedding, sizeof(lk_embedding_args)},
    {"gather", lk_gather, sizeof(lk_gather_args)},
    {"greedy_token", lk_greedy_token, sizeof(lk_greedy_token_args)},
    {"rope_write", lk_rope_write, sizeof(lk_rope_write_args)},
    {"causal_conv1d", lk_causal_conv1d, sizeof(lk_causal_conv1d_args)},
    {"conv_replay", lk_conv_replay, sizeof(lk_conv_replay_args)},
    {"gated_delta", lk_gated_delta, sizeof(lk_gated_delta_args)},
    {"gated_delta_replay", lk_gated_delta_replay, sizeof(lk_gated_delta_replay_args)},
    {"gated_norm", lk_gated_norm, sizeof(lk_gated_norm_args)},
    {"sigmoid_gate", lk_sigmoid_gate, sizeof(lk_sigmoid_gate_args)},
    {"put_rows", lk_put_rows, sizeof(lk_put_rows_args)},
    {"affine", lk_affine, sizeof(lk_affine_args)},
    {"take_rows", lk_take_rows, sizeof(lk_take_rows_args)},
    {"dynamic_conv", lk_dynamic_conv, sizeof(lk_dynamic_conv_args)},
    {"ring_write", lk_ring_write, sizeof(lk_ring_write_args)},
    {"draft_attention", lk_draft_attention, sizeof(lk_draft_attention_args)},
    {"draft_draw", lk_draft_draw, sizeof(lk_draft_draw_args)},
    {"candidate_select", lk_candidate_select, sizeof(lk_candidate_select_args)},
    {"moe_route", lk_moe_route, sizeof(lk_moe_route_args)},
    {"moe_matmul", lk_moe_matmul, sizeof(lk_moe_matmul_args)},
    {"moe_sum", lk_moe_sum, sizeof(lk_moe_sum_args)},
    {"moe_scale", lk_moe_scale, sizeof(lk_moe_scale_args)},
    {"gate_up", lk_gate_up, sizeof(lk_gate_up_args)},
    {"turns", lk_turns, sizeof(lk_turns_args)},
    {"project_heads", lk_project_heads, sizeof(lk_project_heads_args)},
    {"head_token", lk_head_token, sizeof(lk_head_token_args)},
    {"tail_rope", lk_tail_rope, sizeof(lk_tail_rope_args)},
    {"window_write", lk_window_write, sizeof(lk_window_write_args)},
    {"compress_kv", lk_compress_kv, sizeof(lk_compress_kv_args)},
    {"index_topk", lk_index_topk, sizeof(lk_index_topk_args)},
    {"entry_attention", lk_entry_attention, sizeof(lk_entry_attention_args)},
    {"group_route", lk_group_route, sizeof(lk_group_route_args)},
    {"route_by_token", lk_route_by_token, sizeof(lk_route_by_token_args)},
    {"hyper_begin", lk_hyper_begin, sizeof(lk_hyper_begin_args)},
    {"hyper_mix", lk_hyper_mix, sizeof(lk_hyper_mix_args)},
    {"hyper_merge", lk_hyper_merge, sizeof(lk_hyper_merge_args)},
    {"hyper_spread", lk_hyper_spread, sizeof(lk_hyper_spread_args)},
};

int check_op(int32_t op, int64_t args_bytes) {
    if (op < 0 || op >= LK_OP_COUNT) return lk_fail("no op %d: there are %d", op, LK_OP_COUNT);
    if (args_bytes != kOps[op].args_bytes) {
        return lk_fail("%s: a record of %lld bytes, expected %lld", kOps[op].name,
                       static_cast<long long>(args_bytes),
                       static_cast<long long>(kOps[op].args_bytes));
    }
    return 0;
}

int64_t nanoseconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

struct Record {
    lk_kernel kernel;
    const void* args;
    bool barrier;
    // Of the record that follows, if lk_fetch_ahead knows it.
    int32_t next_op;
    const void* next_args;  // or NULL
};

}  // namespace

struct lk_tape {
    std::vector<Record> records;
    std::vector<std::unique_ptr<unsigned char[]>> arguments;
    lk_bounds bounds{};
};

namespace {

struct Run {
    const lk_tape* tape;
    const lk_batch* batch;
    int64_t* op_ns;
};

void run_records(void* context, lk_worker* worker) {
    const Run& run = *static_cast<const Run*>(context);
    int64_t* op_ns = worker->index == 0 ? run.op_ns : nullptr;
    int64_t begun = op_ns != nullptr ? nanoseconds() : 0;
    for (const Record& record : run.tape->records) {
        record.kernel(record.args, run.batch, worker);
        if (record.next_args != nullptr) {
            lk_fetch_ahead(record.next_op, record.next_args, run.batch, worker);
        }
        if (record.barrier) lk_barrier(worker);
        if (op_ns != nullptr) {
            const int64_t now = nanoseconds();
            *op_ns++ = now - begun;
            begun = now;
        }
    }
}

struct One {
    lk_kernel kernel;
    const void* args;
    const lk_batch* batch;
};

void run_one(void* context, lk_worker* worker) {
    const One& one = *static_cast<const One*>(context);
    one.kernel(one.args, one.batch, worker);
}

}  // namespace

lk_tape* lk_tape_create(const lk_limits* limits) {
    lk_tape* tape = new (std::nothrow) lk_tape;
    if (tape == nullptr) {
        lk_fail("no memory for a tape");
        return nullptr;
    }
    tape->bounds.limits = *limits;
    return tape;
}

int32_t lk_tape_add(lk_tape* tape, int32_t op, const void* args, int64_t args_bytes,
                    int32_t barrier) {
    if (check_op(op, args_bytes) || lk_bounds_add(&tape->bounds, op, args)) return -1;
    try {
        auto copy = std::make_unique<unsigned char[]>(static_cast<size_t>(args_bytes));
        std::memcpy(copy.get(), args, static_cast<size_t>(args_bytes));
        const void* kept = copy.get();
        tape->arguments.push_back(std::move(copy));
        tape->records.push_back({kOps[op].kernel, kept, barrier != 0, 0, nullptr});
        if (lk_fetches_ahead(op) && tape->records.size() > 1) {
            Record& before = tape->records[tape->records.size() - 2];
            before.next_op = op;
            before.next_args = kept;
        }
    } catch (const std::bad_alloc&) {
        return lk_fail("no memory for record %zu of a tape", tape->records.size());
    }
    return 0;
}

void lk_tape_free(lk_tape* tape) { delete tape; }

int32_t lk_tape_run(const lk_tape* tape, lk_pool* pool, const lk_batch* batch, int64_t* op_ns) {
    if (lk_check_batch(&tape->bounds, batch)) return -1;
    Run run{tape, batch, op_ns};
    return lk_pool_run(pool, run_records, &run);
}

int32_t lk_run(lk_pool* pool, int32_t op, const void* args, int64_t args_bytes,
               const lk_batch* batch) {
    lk_bounds bounds{};
    if (check_op(op, args_bytes) || lk_bounds_add(&bounds, op, args)) return -1;
    if (lk_check_batch(&bounds, batch)) return -1;
    One one{kOps[op].kernel, args, batch};
    return lk_pool_run(pool, run_one, &one);
}
