// How a kernel's units of work are dealt to the workers: contiguous runs, each unit to one worker.
#ifndef LUCE_SPLIT_H
#define LUCE_SPLIT_H

#include "luce_kernels.h"

typedef struct lk_range {
    int64_t begin, end;
} lk_range;

static inline lk_range lk_share(int64_t units, const lk_worker* worker) {
    const lk_range share = {units * worker->index / worker->count,
                            units * (worker->index + 1) / worker->count};
    return share;
}

#endif
