// lk_project_heads: who has computed the last tile of a head norms, turns and stores it.
//
// Few rows: tiles are dealt out evenly, and a head that two workers share is finished by the one
// who is later; where its products lie, both see them. Many rows, in groups one after the other:
// whole heads are dealt out, so that nobody meets anybody.
#include <string.h>

#include "cache_encode.h"
#include "row_kernels.h"
#include "split.h"
#include "tile_rows.h"
#include "turned_head.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

enum { Q, K, V, SIDES };

struct Side {
    const lk_projection* projection;
    const lk_rows* out;  // where its products lie
    int64_t first_tile;  // of all three
    int first_head;
    int heads, head_tiles;

    int64_t end_tile() const { return first_tile + int64_t(heads) * head_tiles; }
    int end_head() const { return first_head + heads; }
};

struct Work {
    const lk_project_heads_args* args;
    const lk_batch* batch;
    Product products[SIDES];
    Side sides[SIDES];

    const Side& side_of_head(int head) const {
        return sides[(head >= sides[Q].end_head()) + (head >= sides[K].end_head())];
    }
    int64_t tile_of_head(int head) const {
        if (head == sides[V].end_head()) return sides[V].end_tile();
        const Side& side = side_of_head(head);
        return side.first_tile + int64_t(head - side.first_head) * side.head_tiles;
    }
    const Side& side_of(int64_t tile) const {
        return sides[(tile >= sides[Q].end_tile()) + (tile >= sides[K].end_tile())];
    }
    const uint8_t* data(int64_t tile) const {
        const Side& side = side_of(tile);
        return side.projection->weight->tile(tile - side.first_tile);
    }
};

Work work_of(const lk_project_heads_args& a, const lk_batch* batch) {
    Work work{};
    work.args = &a;
    work.batch = batch;
    const lk_projection* const projections[] = {&a.q, &a.k, &a.v};
    const lk_rows* const outs[] = {&a.heads.q.out, &a.heads.k.x, &a.heads.v};
    const int heads[] = {a.heads.q.heads, a.heads.k.heads, a.heads.v_cache.kv_heads};
    const int dims[] = {a.heads.q.dim, a.heads.k.dim, a.heads.v_cache.dim};
    int64_t tile = 0;
    int head = 0;
    for (int i = 0; i < SIDES; i++) {
        work.products[i] = {projections[i]->weight, &a.x, &projections[i]->xq};
        work.sides[i] = {projections[i], outs[i], tile, head, heads[i], dims[i] / LANES};
        tile = work.sides[i].end_tile();
        head = work.sides[i].end_head();
    }
    return work;
}

// The products of a tile, with bias, to where they lie.
void store_tile(const Side& side, int64_t tile, int64_t first, int count, float* values) {
    const int64_t column = (tile - side.first_tile) * LANES;
    if (side.projection->bias) add_bias(side.projection->bias + column, count, LANES, values);
    float* out = side.out->data + first * side.out->stride + column;
    for (int r = 0; r < count; ++r, out += side.out->stride) {
        memcpy(out, values + r * LANES, LANES * sizeof(float));
    }
}

void finish_head(const Work& work, int head, int64_t first, int count) {
    const lk_rope_write_args& a = work.args->heads;
    const Side& side = work.side_of_head(head);
    const lk_batch* batch = work.batch;
    const int own = head - side.first_head;
    const float* turn = work.args->turns.data + first * work.args->turns.stride;
    for (int64_t row = first; row < first + count; row++, turn += work.args->turns.stride) {
        if (&side == &work.sides[V]) {
            encode_head(a.v_cache, a.v, batch, row, own);
        } else if (&side == &work.sides[K]) {
            turn_in_place(a.k, a.k_norm, a.k_eps, turn,
                          a.k.x.data + row * a.k.x.stride + int64_t(own) * a.k.dim);
            encode_head(a.k_cache, a.k.x, batch, row, own);
        } else {
            turn_in_place(a.q, a.q_norm, a.q_eps, turn,
                          a.q.out.data + row * a.q.out.stride + int64_t(own) * a.q.dim);
        }
    }
}

// Whether these tiles of a head were the last that were missing.
bool completes(int32_t* arrived, int tiles, int head_tiles) {
    if (tiles == head_tiles) return true;
    if (__atomic_add_fetch(arrived, tiles, __ATOMIC_ACQ_REL) < head_tiles) return false;
    __atomic_store_n(arrived, 0, __ATOMIC_RELAXED);
    return true;
}

void run_share(const Work& work, lk_range tiles, int64_t first, int count, Group<SIDES>& group) {
    int in_head = 0;  // tiles that were done
    const int64_t ahead = tiles_ahead(*work.products[0].weight, count);
    for (int64_t tile = tiles.begin; tile < tiles.end; tile++) {
        const Side& side = work.side_of(tile);
        const int64_t own = tile - side.first_tile;
        const int index = int(&side - work.sides);
        fetch_out(*side.out, first, count, own * LANES);
        const uint8_t* next = tile + ahead < tiles.end ? work.data(tile + ahead) : nullptr;
        run_tile(work.products[index], group.rows[index], own, next, group.out, group.work);
        store_tile(side, tile, first, count, group.out);
        in_head++;
        const bool head_ends = (own + 1) % side.head_tiles == 0;
        if (!head_ends && tile + 1 < tiles.end) continue;
        const int head = side.first_head + int(own / side.head_tiles);
        if (completes(work.args->arrived + head, in_head, side.head_tiles)) {
            finish_head(work, head, first, count);
        }
        in_head = 0;
    }
}

}  // namespace

void project_heads(const void* record, const lk_batch* batch, lk_worker* worker) {
    const lk_project_heads_args& a = *(const lk_project_heads_args*)record;
    const int64_t all = batch->rows;
    if (all == 0) return;
    const Work work = work_of(a, batch);
    const int64_t step = group_rows(work.products, 1, 0, all, worker->scratch_bytes);
    lk_range tiles = lk_share(work.sides[V].end_tile(), worker);
    if (step < all) {
        const lk_range heads = lk_share(work.sides[V].end_head(), worker);
        tiles = {work.tile_of_head(int(heads.begin)), work.tile_of_head(int(heads.end))};
    }
    for (int64_t first = 0; first < all; first += step) {
        const int64_t count = step < all - first ? step : all - first;
        Group<SIDES> group = begin_group(work.products, 1, first, count, worker->scratch);
        run_share(work, tiles, first, int(count), group);
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
