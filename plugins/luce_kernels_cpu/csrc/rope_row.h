// Rotary position embedding of one head. The angle of a pair is the float32 product
// position * inv_freq.
#ifndef LUCE_ROPE_ROW_H
#define LUCE_ROPE_ROW_H

#include <string.h>

#include "luce_kernels.h"
#include "sincos.h"

namespace lk {
namespace LK_ISA_NS {

// Cosines and sines of a row's pairs; MOST_PAIRS a time where a head has more.
constexpr int MOST_PAIRS = 256;
struct turns {
    float cosine[MOST_PAIRS], sine[MOST_PAIRS];
};

static inline void find_turns(const lk_rope_args& args, int32_t position, int start, int pairs,
                              turns* turn) {
    const vf where = set1((float)position), factor = set1(args.factor);
    for (int i = 0; i < pairs; i += W) {
        const float* frequency = args.inv_freq + start + i;
        vf sine, cosine;
        sincos(mul(where, pairs - i < W ? load_first(frequency, pairs - i) : load(frequency)),
               &sine, &cosine);
        store(turn->cosine + i, mul(cosine, factor));
        store(turn->sine + i, mul(sine, factor));
    }
}

static inline void turn_halves(const float* first, const float* second, const float* cosine,
                               const float* sine, int pairs, float* out_first,
                               float* out_second) {
    for (int i = 0; i < pairs; i += W) {
        const int n = pairs - i;
        const vf a = n < W ? load_first(first + i, n) : load(first + i);
        const vf b = n < W ? load_first(second + i, n) : load(second + i);
        const vf c = load(cosine + i), s = load(sine + i);
        const vf x = sub(mul(a, c), mul(b, s)), y = add(mul(b, c), mul(a, s));
        if (n < W) {
            store_first(out_first + i, x, n);
            store_first(out_second + i, y, n);
        } else {
            store(out_first + i, x);
            store(out_second + i, y);
        }
    }
}

static inline void turn_pairs(const float* x, const turns& turn, int pairs, float* out) {
    for (int i = 0; i < pairs; i++) {
        const float a = x[2 * i], b = x[2 * i + 1];
        out[2 * i] = a * turn.cosine[i] - b * turn.sine[i];
        out[2 * i + 1] = b * turn.cosine[i] + a * turn.sine[i];
    }
}

// The pairs start..start + pairs - 1 of one head, whose turns are known; with the first of them,
// what does not turn. `out` may be `x`.
static inline void turn_head(const lk_rope_args& args, const turns& turn, int start, int pairs,
                             const float* x, float* out) {
    if (args.interleaved) {
        turn_pairs(x + 2 * start, turn, pairs, out + 2 * start);
    } else {
        turn_halves(x + start, x + args.pairs + start, turn.cosine, turn.sine, pairs, out + start,
                    out + args.pairs + start);
    }
    const int rest = args.dim - 2 * args.pairs;
    if (start == 0 && rest && out != x) {
        memcpy(out + 2 * args.pairs, x + 2 * args.pairs, sizeof(float) * (size_t)rest);
    }
}

// The turns of the row that was turned last.
struct row_turns {
    turns turn;
    int64_t row = -1;
};

// One head of a row. `out` may be `x`.
static inline void rope_head(const lk_rope_args& args, const lk_batch* batch, int64_t row,
                             row_turns* known, const float* x, float* out) {
    for (int start = 0; start < args.pairs; start += MOST_PAIRS) {
        const int pairs = args.pairs - start < MOST_PAIRS ? args.pairs - start : MOST_PAIRS;
        if (row != known->row || args.pairs > MOST_PAIRS) {
            find_turns(args, batch->positions[row], start, pairs, &known->turn);
        }
        turn_head(args, known->turn, start, pairs, x, out);
    }
    known->row = row;
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
