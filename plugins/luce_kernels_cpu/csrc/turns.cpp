// lk_turns: the cosines and sines of a step's positions.
#include "rope_row.h"
#include "row_kernels.h"
#include "split.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

// Pairs start .. start + count - 1 of a row, as lk_turns_args says.
void put_pairs(const turns& turn, bool interleaved, int start, int count, float* cosine,
               float* sine) {
    for (int i = 0; i < count; i++) {
        const int pair = start + i;
        const float c = turn.cosine[i], s = turn.sine[i];
        if (interleaved) {
            cosine[2 * pair] = cosine[2 * pair + 1] = c;
            sine[2 * pair] = -s;
            sine[2 * pair + 1] = s;
        } else {
            cosine[pair] = c;
            sine[pair] = s;
        }
    }
}

}  // namespace

void turn_rows(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_turns_args& args = *(const lk_turns_args*)record;
    const int64_t width = LK_TURN_WIDTH(args.pairs, args.interleaved);
    lk_rope_args rope{};
    rope.inv_freq = args.inv_freq;
    rope.factor = args.factor;
    const lk_range share = lk_share(batch->rows, worker);
    for (int64_t row = share.begin; row < share.end; row++) {
        float* out = args.out.data + row * args.out.stride;
        for (int start = 0; start < args.pairs; start += MOST_PAIRS) {
            const int left = args.pairs - start, count = left < MOST_PAIRS ? left : MOST_PAIRS;
            turns turn;
            find_turns(rope, batch->positions[row], start, count, &turn);
            put_pairs(turn, args.interleaved, start, count, out, out + width);
        }
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
