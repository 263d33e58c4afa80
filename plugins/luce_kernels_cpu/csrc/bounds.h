// What a step may refer to. Checked once per step, so that kernels need no checks.
#ifndef LUCE_BOUNDS_H
#define LUCE_BOUNDS_H

#include "luce_kernels.h"

// The smallest limits over all records of a tape. A limit of 0 means that no record reads the
// field it limits.
typedef struct lk_bounds {
    lk_limits limits;
    int64_t table_rows;    // token_ids: rows of the embedding table
    int64_t cache_rows;    // kv_rows: rows of the cache
    int64_t cache_blocks;  // block_tables: blocks of the cache, the null block included
    int32_t block_size;
    bool positions;
    bool logit_rows;
} lk_bounds;

// Narrows the bounds by one record and checks what a record alone can show. 0, or -1 with a
// message that names the op and the field.
int lk_bounds_add(lk_bounds* bounds, int32_t op, const void* args);

// 0, or -1 with a message that names the field of the batch.
int lk_check_batch(const lk_bounds* bounds, const lk_batch* batch);

#endif
