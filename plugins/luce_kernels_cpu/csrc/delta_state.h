// The state arithmetic of the gated delta rule, for some columns of one head: decode, verify,
// prefill and replay share it, so that a row changes the state by the same bits in all of them.
//
// A column block is NV vectors of columns of a state [key_dim][stride]. Columns are independent:
// how many are done at once changes no bit.
#ifndef LUCE_DELTA_STATE_H
#define LUCE_DELTA_STATE_H

#include "vec.h"

namespace lk {
namespace LK_ISA_NS {

// What a row does to one head's state. `key` has unit length.
struct delta_row {
    const float* key;    // [key_dim]
    const float* query;  // [key_dim]
    float decay, rate;
};

// decay * S + key[i] delta^T: the two roundings of an update.
static inline vf updated(vf state, vf decay, vf key, vf delta) {
    return fma(key, delta, mul(state, decay));
}

// S^T key of the decayed state.
template <int NV>
static inline void read_state(const float* state, int64_t stride, int32_t key_dim,
                              const delta_row& row, vf* read) {
    const vf decay = set1(row.decay);
    for (int v = 0; v < NV; v++) read[v] = zero();
    for (int32_t i = 0; i < key_dim; i++, state += stride) {
        const vf key = set1(row.key[i]);
        for (int v = 0; v < NV; v++) read[v] = fma(key, mul(load(state + v * W), decay), read[v]);
    }
}

// Updates the state and reads it with the query. `ahead`, if not NULL: memory of the same layout
// that is needed next.
template <int NV>
static inline void update_state(float* state, int64_t stride, int32_t key_dim,
                                const delta_row& row, const vf* delta, const float* ahead,
                                vf* out) {
    const vf decay = set1(row.decay);
    for (int v = 0; v < NV; v++) out[v] = zero();
    for (int32_t i = 0; i < key_dim; i++, state += stride) {
        const vf key = set1(row.key[i]), query = set1(row.query[i]);
        if (ahead != nullptr) {
            for (int v = 0; v < NV * W; v += 16)
                _mm_prefetch((const char*)(ahead + i * stride + v), _MM_HINT_T0);
        }
        for (int v = 0; v < NV; v++) {
            const vf fresh = updated(load(state + v * W), decay, key, delta[v]);
            store(state + v * W, fresh);
            out[v] = fma(query, fresh, out[v]);
        }
    }
}

// update_state, and read_state for the row after it, in one pass.
template <int NV>
static inline void update_and_read(float* state, int64_t stride, int32_t key_dim,
                                   const delta_row& row, const vf* delta, const delta_row& next,
                                   vf* out, vf* read) {
    const vf decay = set1(row.decay), next_decay = set1(next.decay);
    for (int v = 0; v < NV; v++) out[v] = read[v] = zero();
    for (int32_t i = 0; i < key_dim; i++, state += stride) {
        const vf key = set1(row.key[i]), query = set1(row.query[i]), next_key = set1(next.key[i]);
        for (int v = 0; v < NV; v++) {
            const vf fresh = updated(load(state + v * W), decay, key, delta[v]);
            store(state + v * W, fresh);
            out[v] = fma(query, fresh, out[v]);
            read[v] = fma(next_key, mul(fresh, next_decay), read[v]);
        }
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
