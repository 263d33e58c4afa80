// Draft tokens: drawn from rows of logits, or chosen one after the other among the best of each.
#include <stdlib.h>

#include "best_value.h"
#include "exp.h"
#include "hybrid_kernels.h"
#include "noise.h"
#include "split.h"
#include "table_row.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

constexpr int BLOCK_TOKENS = 64;  // whose noise is made at once

// The segment of a logit row, and which of the segment's rows it is.
struct block_row {
    int32_t slot, step;
};

block_row find_row(const lk_batch* batch, int64_t row) {
    int32_t segment = 0;
    while (batch->cu_logits[segment + 1] <= row) segment++;
    return {batch->slot_ids[segment], (int32_t)(row - batch->cu_logits[segment])};
}

int64_t key_of(const lk_noise& noise, const block_row& row) {
    return noise.keys[(int64_t)row.slot * noise.keys_per_slot + row.step];
}

// Which of a block's tokens could score `best` or more; the others need no logarithms.
// Noise above y needs 1 - u < e^-y. The slack covers roundings, of 1 - u and of scores.
vm may_win(vf score, vi bits, float best) {
    const vf gap = mul(sub(set1(0x1p31f), to_float(bits)), set1(0x1p-32f));
    const vf reach = exp(sub(score, set1(best)));
    return greater(fma(reach, set1(1.01f), set1(1e-6f)), gap);
}

// argmax of (x - largest) / temperature + noise, the lowest index of equals. `top` is the index of
// the largest, which is finite; no value is NaN.
int32_t draw(const float* x, int32_t n, int32_t top, float temperature, int64_t key) {
    const vf largest = set1(x[top]), by = set1(temperature);
    int32_t best_at = top;
    float best = gumbel_at(key, top);
    for (int32_t at = 0; at < n; at += BLOCK_TOKENS) {
        uint64_t pairs[BLOCK_TOKENS / 2];
        for (int i = 0; i < BLOCK_TOKENS / 2; i++) pairs[i] = noise_bits(key, at / 2 + i);
        int32_t bits[BLOCK_TOKENS];
        __builtin_memcpy(bits, pairs, sizeof bits);
        for (int i = 0; i < BLOCK_TOKENS && at + i < n; i += W) {
            const int here = n - at - i < W ? n - at - i : W;
            const vf value = here < W ? load_first(x + at + i, here) : load(x + at + i);
            const vf score = div(sub(value, largest), by);
            if (!any(may_win(score, loadi(bits + i), best))) continue;
            float scores[W];
            store(scores, score);
            for (int lane = 0; lane < here; lane++) {
                const int32_t token = at + i + lane;
                const float found = scores[lane] + gumbel(bits[i + lane]);
                if (found > best || (found == best && token < best_at)) {
                    best = found;
                    best_at = token;
                }
            }
        }
    }
    return best_at;
}

int32_t draw_row(const float* x, int32_t n, float temperature, int64_t key) {
    // NaN as torch has it: the first is the best value, and with noise all scores are NaN.
    const int32_t top = best_value(x, n);
    if (!(temperature > 0.0f)) return top;
    if (x[top] != x[top] || x[top] == -__builtin_inff()) return 0;
    if (x[top] == __builtin_inff()) return top;
    return draw(x, n, top, temperature, key);
}

// The `most` largest values by falling size, of equal ones the first.
struct best_list {
    lk_candidate* found;
    int32_t most, count;

    float least() const { return count < most ? -__builtin_inff() : found[most - 1].value; }

    void offer(float value, int32_t token) {
        int32_t place = count < most ? count++ : most - 1;
        for (; place > 0 && found[place - 1].value < value; place--)
            found[place] = found[place - 1];
        found[place] = {value, token};
    }
};

void sort_by_token(lk_candidate* found, int32_t count) {
    for (int32_t i = 1; i < count; i++) {
        const lk_candidate moved = found[i];
        int32_t place = i;
        for (; place > 0 && found[place - 1].token > moved.token; place--)
            found[place] = found[place - 1];
        found[place] = moved;
    }
}

// Fills `count` of `most` places up with the first tokens whose value is `value`, in place of those
// that are there.
int32_t fill_with_equals(const float* x, int32_t n, float value, lk_candidate* found,
                         int32_t count, int32_t most) {
    while (count > 0 && found[count - 1].value == value) count--;
    for (int32_t token = 0; token < n && count < most; token++)
        if (x[token] == value) found[count++] = {value, token};
    return count;
}

// The `most` best tokens of a row, ascending by token. A NaN takes a place and is not offered.
int32_t best_tokens(const float* x, int32_t n, int32_t most, lk_candidate* found) {
    best_list list = {found, most, 0};
    int32_t strange = 0;
    for (int32_t at = 0; at < n; at += W) {
        const int here = n - at < W ? n - at : W;
        const vf value = here < W ? load_first(x + at, here) : load(x + at);
        const float least = list.least();
        if (!any(either(greater(value, set1(least)), is_nan(value)))) continue;
        for (int lane = 0; lane < here; lane++) {
            const float each = x[at + lane];
            if (each != each) {
                strange++;
            } else if (each > list.least()) {
                list.offer(each, at + lane);
            }
        }
    }
    const int32_t ranked = most - strange;
    if (ranked <= 0) return 0;
    int32_t count = list.count < ranked ? list.count : ranked;
    if (strange > 0 || count < most) {
        const float least = count < ranked ? -__builtin_inff() : found[count - 1].value;
        count = fill_with_equals(x, n, least, found, count, most);
    }
    sort_by_token(found, count);
    return count;
}

float pair_score(const float* wanted, const float* after, int64_t rank) {
    vf sum = zero();
    for (int64_t i = 0; i < rank; i += W) {
        const int left = rank - i < W ? (int)(rank - i) : W;
        sum = left < W ? fma(load_first(after + i, left), load_first(wanted + i, left), sum)
                       : fma(load(after + i), load(wanted + i), sum);
    }
    return sum_lanes(sum);
}

// As torch.argmax over the candidates' scores.
int32_t best_score(const float* scores, int32_t count) {
    int32_t best = 0;
    for (int32_t i = 0; i < count; i++) {
        if (scores[i] != scores[i]) return i;
        if (scores[i] > scores[best]) best = i;
    }
    return best;
}

// The token of one row, after the token `before`.
int32_t select_token(const lk_candidate_select_args& args, int64_t row, const block_row& place,
                     int32_t before, float* scratch) {
    const int32_t count = args.counts[row];
    if (count == 0) return 0;
    const lk_candidate* offered = args.offered + row * args.top_k;
    const int64_t rank = args.g.width;
    float* wanted = scratch;
    float* after = scratch + rank;
    table_row(*args.predecessors, before, wanted);
    const float* g = args.g.data + row * args.g.stride;
    for (int64_t i = 0; i < rank; i++) wanted[i] *= g[i];
    float scores[LK_MOST_CANDIDATES];
    for (int32_t i = 0; i < count; i++) {
        table_row(*args.successors, offered[i].token, after);
        scores[i] = offered[i].value + pair_score(wanted, after, rank);
    }
    const float temperature = args.noise.temperatures[place.slot];
    if (temperature > 0.0f) {
        const float largest = scores[best_score(scores, count)];
        const int64_t key = key_of(args.noise, place);
        for (int32_t i = 0; i < count; i++) {
            scores[i] = (scores[i] - largest) / temperature + gumbel_at(key, offered[i].token);
        }
    }
    return offered[best_score(scores, count)].token;
}

}  // namespace

void draft_draw(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_draft_draw_args& args = *(const lk_draft_draw_args*)record;
    for (int64_t row = worker->index; row < batch->logits; row += worker->count) {
        const block_row place = find_row(batch, row);
        const float temperature = args.noise.temperatures[place.slot];
        args.out[row] = draw_row(args.logits.data + row * args.logits.stride, args.logits.width,
                                 temperature, key_of(args.noise, place));
    }
}

void candidate_select(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_candidate_select_args& args = *(const lk_candidate_select_args*)record;
    for (int64_t row = worker->index; row < batch->logits; row += worker->count) {
        args.counts[row] = best_tokens(args.logits.data + row * args.logits.stride,
                                       args.logits.width, args.top_k,
                                       args.offered + row * args.top_k);
    }
    lk_barrier(worker);
    // What the bounds of `g` promise.
    if (worker->scratch_bytes < 2 * args.g.width * (int64_t)sizeof(float)) abort();
    for (int32_t segment = worker->index; segment < batch->segments; segment += worker->count) {
        int32_t token = batch->token_ids[batch->cu_seqlens[segment]];
        const int32_t first = batch->cu_logits[segment], stop = batch->cu_logits[segment + 1];
        for (int32_t row = first; row < stop; row++) {
            const block_row place = {batch->slot_ids[segment], row - first};
            token = select_token(args, row, place, token, (float*)worker->scratch);
            args.out[row] = token;
        }
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
