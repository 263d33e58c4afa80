// The compressed entries of a slot as blocks of stored rows.
#ifndef LUCE_ENTRY_ROWS_H
#define LUCE_ENTRY_ROWS_H

#include "attention_tile.h"

namespace lk {
namespace LK_ISA_NS {

static inline const uint8_t* entry_row(const lk_cache& cache, const int32_t* table, int32_t entry) {
    const int64_t block = table[entry / cache.block_size];
    return cache_row(&cache, block * cache.block_size + entry % cache.block_size, 0);
}

static inline const int32_t* entry_table(const lk_batch* batch, int32_t segment) {
    return batch->block_tables + (int64_t)segment * batch->table_stride;
}

// Up to KV_KEYS entries of a segment's slot, from `first` up to but without `stop`.
static inline stored_rows entry_rows(const lk_cache& cache, const lk_batch* batch, int32_t segment,
                                     int32_t first, int32_t stop) {
    const int32_t* table = entry_table(batch, segment);
    stored_rows found;
    found.count = stop - first < KV_KEYS ? stop - first : KV_KEYS;
    found.bytes = (int32_t)cache_row_bytes(cache.type, cache.dim);
    for (int32_t i = 0; i < found.count; i++) found.row[i] = entry_row(cache, table, first + i);
    return found;
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
