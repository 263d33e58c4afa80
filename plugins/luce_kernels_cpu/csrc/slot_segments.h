// The segments of a batch as kernels with per-slot state see them.
#ifndef LUCE_SLOT_SEGMENTS_H
#define LUCE_SLOT_SEGMENTS_H

#include "luce_kernels.h"

// Rows first .. first + count - 1 of one slot.
typedef struct lk_slot_segment {
    int32_t slot, first, count;
    int32_t verifies;  // its rows may be rejected: state stays, logs are written
} lk_slot_segment;

static inline lk_slot_segment lk_segment_at(const lk_batch* batch, int32_t number) {
    const int32_t first = batch->cu_seqlens[number];
    const int32_t count = batch->cu_seqlens[number + 1] - first;
    const lk_slot_segment segment = {batch->slot_ids[number], first, count,
                                     number >= batch->num_prefill && count > 1};
    return segment;
}

#endif
