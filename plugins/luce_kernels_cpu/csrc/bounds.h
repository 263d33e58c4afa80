// What a step may refer to. Checked once per step, so that kernels need no checks.
#ifndef LUCE_BOUNDS_H
#define LUCE_BOUNDS_H

#include <vector>

#include "luce_kernels.h"

// Indices that the host puts beside the batch: one for each row, or one for each slot with verify
// rows, in 0 .. limit - 1.
typedef struct lk_checked_values {
    const char* name;
    const int32_t* values;
    int64_t limit;
    bool by_slot;
} lk_checked_values;

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
    bool segments;         // cu_seqlens and what follows from it
    int64_t slots;         // slot_ids: slots of a cache, the null slot included
    int64_t log_rows;      // rows of a segment that verifies: those of a slot's logs
    int64_t staged_rows;   // rows: those of buffers that the host fills
    int64_t noise_keys;    // logits of a segment: keys of a slot
    std::vector<lk_checked_values> values;
} lk_bounds;

// Narrows the bounds by one record and checks what a record alone can show. 0, or -1 with a
// message that names the op and the field.
int lk_bounds_add(lk_bounds* bounds, int32_t op, const void* args);

// 0, or -1 with a message that names the field of the batch.
int lk_check_batch(const lk_bounds* bounds, const lk_batch* batch);

// The same two for the records of hybrid_ops.h; the batch's starts have been checked.
int lk_bounds_add_hybrid(lk_bounds* bounds, int32_t op, const void* args);
int lk_check_hybrid(const lk_bounds* bounds, const lk_batch* batch);

// The first for the records of deepseek_ops.h.
int lk_bounds_add_deepseek(lk_bounds* bounds, int32_t op, const void* args);

// The same for the records of fused_ops.h.
int lk_bounds_add_fused(lk_bounds* bounds, int32_t op, const void* args);

// For all: narrows a limit, of which 0 is none; 0, or -1 with a message that names the field.
void lk_narrow(int64_t* limit, int64_t value);
int lk_add_kv_write(lk_bounds* bounds, const lk_kv_write_args& write);
int lk_check_read(const char* op, const lk_weight* weight, const lk_rows& x,
                  const lk_quantized& xq);
int lk_check_cache(const char* op, const char* side, const lk_cache& cache);
int lk_check_within(const char* name, const int32_t* values, int32_t count, int64_t limit);
// Whether int8 rows of `width` values, if they are wanted, are not what a kernel writes that finishes
// `group` values at a time.
bool lk_check_quantized(const lk_quantized& quantized, int32_t width, int32_t group);
int lk_check_starts(const char* name, const int32_t* starts, int32_t segments, int32_t total);

#endif
