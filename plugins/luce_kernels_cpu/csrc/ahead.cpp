// What the records that read weights read first.
#include "ahead.h"

#include <algorithm>

#include "split.h"

namespace lk {
namespace {

void fetch_share(const lk_weight& weight, int64_t rows, const lk_worker* worker) {
    const lk_range share = lk_share(weight.tiles, worker);
    const int64_t end = std::min(share.end, share.begin + tiles_ahead(weight, rows));
    for (int64_t tile = share.begin; tile < end; ++tile) fetch_tile(weight, tile);
}

void fetch_units(const lk_gate_up_args& a, int64_t rows, const lk_worker* worker) {
    const int columns = unit_columns(a), tiles = columns / LANES;
    const lk_range share = lk_share((a.gate.weight->n + columns - 1) / columns, worker);
    const int64_t first = 2 * share.begin * tiles, ahead = tiles_ahead(*a.gate.weight, rows);
    for (int64_t at = first; at < first + ahead; ++at) {
        const UnitTile next = unit_tile(a, at, share.end);
        if (next.weight != nullptr) fetch_tile(*next.weight, next.tile);
    }
}

void fetch_heads(const lk_project_heads_args& a, int64_t rows, const lk_worker* worker) {
    const lk_weight* const weights[] = {a.q.weight, a.k.weight, a.v.weight};
    const lk_range share =
        lk_share(a.q.weight->tiles + a.k.weight->tiles + a.v.weight->tiles, worker);
    int64_t at = share.begin, left = std::min(share.end - at, tiles_ahead(*a.q.weight, rows));
    for (const lk_weight* weight : weights) {
        for (; at < weight->tiles && left > 0; ++at, --left) fetch_tile(*weight, at);
        at -= weight->tiles;
    }
}

}  // namespace
}  // namespace lk

bool lk_fetches_ahead(int32_t op) {
    return op == LK_OP_MATMUL || op == LK_OP_GATE_UP || op == LK_OP_PROJECT_HEADS ||
           op == LK_OP_HEAD_TOKEN;
}

void lk_fetch_ahead(int32_t op, const void* args, const lk_batch* batch, const lk_worker* worker) {
    using namespace lk;
    switch (op) {
        case LK_OP_MATMUL: {
            const auto& a = *static_cast<const lk_matmul_args*>(args);
            return fetch_share(*a.weight, lk_row_count(&a.x, batch), worker);
        }
        case LK_OP_HEAD_TOKEN: {
            const auto& a = *static_cast<const lk_head_token_args*>(args);
            return fetch_share(*a.head.weight, lk_row_count(&a.x, batch), worker);
        }
        case LK_OP_GATE_UP: {
            const auto& a = *static_cast<const lk_gate_up_args*>(args);
            return fetch_units(a, lk_row_count(&a.x, batch), worker);
        }
        case LK_OP_PROJECT_HEADS: {
            const auto& a = *static_cast<const lk_project_heads_args*>(args);
            return fetch_heads(a, batch->rows, worker);
        }
    }
}
