// lk_weight_pack: file rows into tiles, all workers at once.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "code_books.h"
#include "error.h"
#include "formats.h"
#include "half.h"
#include "kernels.h"
#include "pool.h"

namespace lk {
namespace {

constexpr int32_t F16 = 1;  // ggml's id
constexpr int64_t ALIGN = 64;
constexpr int64_t MAX_BYTES = int64_t(1) << 42;

int64_t aligned(int64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

struct Job {
    const lk_weight* weight;
    const uint8_t* blocks;
    int64_t row_bytes;  // in the file
};

void pack_int8_tile(const Job& job, int64_t tile, int lanes) {
    const Format& format = *job.weight->format;
    uint8_t* data = job.weight->data + tile * job.weight->tile_bytes;
    std::memset(data, 0, size_t(job.weight->tile_bytes));
    const int64_t file_blocks = job.weight->k / format.block_values;
    for (int64_t i = 0; i < file_blocks; ++i) {
        uint8_t* side = data + job.weight->side_offset + i * format.side_bytes;
        uint8_t* codes_at = data + i * format.subs() * planes_bytes(format.planes);
        for (int lane = 0; lane < lanes; ++lane) {
            const uint8_t* block = job.blocks + (tile * LANES + lane) * job.row_bytes +
                                   i * format.block_bytes;
            format.put_side(block, side, lane);
            for (int sub = 0; sub < format.subs(); ++sub) {
                uint8_t codes[BLOCK];
                format.unpack(block, sub, codes);
                put_codes(format.planes, codes_at + sub * planes_bytes(format.planes), lane, codes);
            }
        }
    }
}

struct Same {
    template <typename Element>
    Element operator()(Element x) const {
        return x;
    }
};
// Times SPLIT_SCALE: exact, and normal if not zero.
struct Scaled {
    uint16_t operator()(uint16_t half) const {
        const float x = half_to_float(half) * SPLIT_SCALE;
        uint32_t bits;
        std::memcpy(&bits, &x, 4);
        if ((bits & 0x7FFFFFFF) == 0) return half;
        return uint16_t((half & 0x8000) | (((bits & 0x7FFFFFFF) >> 13) - (112u << 10)));
    }
};

// `side` elements of a lane beside each other.
template <typename Element, int side, class Change = Same>
void pack_plain_tile(const Job& job, int64_t tile, int lanes) {
    uint8_t* data = job.weight->data + tile * job.weight->tile_bytes;
    std::memset(data, 0, size_t(job.weight->tile_bytes));
    for (int lane = 0; lane < lanes; ++lane) {
        const uint8_t* row = job.blocks + (tile * LANES + lane) * job.row_bytes;
        for (int64_t i = 0; i < job.weight->k; ++i) {
            const int64_t at = (i / side * LANES + lane) * side + i % side;
            Element x;
            std::memcpy(&x, row + i * sizeof x, sizeof x);
            x = Change()(x);
            std::memcpy(data + at * sizeof x, &x, sizeof x);
        }
    }
}

void pack_tile(const Job& job, int64_t tile) {
    const lk_weight& weight = *job.weight;
    const int64_t left = weight.n - tile * LANES;
    const int lanes = int(left < LANES ? left : LANES);
    switch (weight.format->layout) {
        case Layout::INT8: return pack_int8_tile(job, tile, lanes);
        case Layout::PLAIN:
            if (weight.format->block_bytes == 4) {
                return pack_plain_tile<uint32_t, 1>(job, tile, lanes);
            }
            return pack_plain_tile<uint16_t, 1>(job, tile, lanes);
        case Layout::PAIRS:
            if (weight.format->type == F16) {
                return pack_plain_tile<uint16_t, 2, Scaled>(job, tile, lanes);
            }
            return pack_plain_tile<uint16_t, 2>(job, tile, lanes);
        case Layout::BLOCKS:
            std::memcpy(weight.data + tile * weight.tile_bytes,
                        job.blocks + tile * weight.tile_bytes, size_t(lanes * job.row_bytes));
            return;
    }
}

void pack_share(void* context, lk_worker* worker) {
    const Job& job = *static_cast<const Job*>(context);
    const int64_t tiles = job.weight->tiles;
    const int64_t last = tiles * (worker->index + 1) / worker->count;
    for (int64_t tile = tiles * worker->index / worker->count; tile < last; ++tile) {
        pack_tile(job, tile);
    }
}

void set_layout(lk_weight& weight, int64_t row_bytes) {
    const Format& format = *weight.format;
    weight.tiles = (weight.n + LANES - 1) / LANES;
    if (format.layout == Layout::BLOCKS) {
        weight.tile_bytes = LANES * row_bytes;
        weight.bytes = weight.n * row_bytes;
        return;
    }
    if (format.layout != Layout::INT8) {
        weight.tile_bytes = weight.blocks() * BLOCK * LANES * format.block_bytes;
    } else {
        weight.side_offset = weight.k / BLOCK * planes_bytes(format.planes);
        weight.tile_bytes =
            aligned(weight.side_offset + weight.k / format.block_values * format.side_bytes);
    }
    weight.bytes = weight.tiles * weight.tile_bytes;
}

// Checks the arguments of lk_weight_pack; bytes of a file row, or -1 with a message.
int64_t checked_row_bytes(const Format* format, int32_t type, int64_t n, int64_t k,
                          const uint8_t* blocks, int64_t bytes) {
    if (format == nullptr) return lk_fail("no kernel for ggml type %d", type);
    if (format->needs_code_book && code_book(type) == nullptr) {
        return lk_fail("%s needs its code book first: lk_set_code_book", format->name);
    }
    if (n < 1 || k < 1 || k > MAX_K || n > MAX_BYTES / k) {
        return lk_fail("a weight of %lld x %lld is out of range", (long long)n, (long long)k);
    }
    if (k % format->block_values != 0) {
        return lk_fail("%lld columns are not whole blocks: %s has blocks of %d", (long long)k,
                       format->name, format->block_values);
    }
    const int64_t row_bytes = k / format->block_values * format->block_bytes;
    if (blocks == nullptr || bytes != n * row_bytes) {
        return lk_fail("%s of %lld x %lld has %lld bytes, got %lld", format->name, (long long)n,
                       (long long)k, (long long)(n * row_bytes), (long long)bytes);
    }
    return row_bytes;
}

bool can_be_split(const uint8_t* halves, int64_t count) {
    constexpr int BIASED_EXPONENT_OF_64 = 21;
    static_assert(MOST_SPLIT == 64.0f);
    uint16_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
        uint16_t half;
        std::memcpy(&half, halves + 2 * i, 2);
        largest = std::max(largest, uint16_t(half & 0x7FFF));
    }
    return largest < BIASED_EXPONENT_OF_64 << 10;
}

// How values of a file's format are kept: see weight.h.
const Format* packed_format(const Format& format, Isa isa, int64_t k, const uint8_t* values,
                            int64_t count) {
    if (k > MOST_ROUNDED_K) {
        const Format* long_format = find_long_format(format.type);
        return long_format != nullptr ? long_format : &format;
    }
    const Format* split = find_split_format(format.type);
    const bool splits = split != nullptr && find_kernel(isa, *split) != nullptr;
    return splits && can_be_split(values, count) ? split : &format;
}

}  // namespace
}  // namespace lk

extern "C" LK_API lk_weight* lk_weight_pack(lk_pool* pool, int32_t ggml_type, int64_t n, int64_t k,
                                            const uint8_t* blocks, int64_t bytes) {
    using namespace lk;
    const Format* format = find_format(ggml_type);
    const int64_t row_bytes = checked_row_bytes(format, ggml_type, n, k, blocks, bytes);
    if (row_bytes < 0) return nullptr;
    const Isa isa = current_isa();
    format = packed_format(*format, isa, k, blocks, n * k);
    const Kernel* kernel = find_kernel(isa, *format);
    if (kernel == nullptr) {
        lk_fail("no %s kernel for %s", isa_name(isa), format->name);
        return nullptr;
    }
    auto* weight = static_cast<lk_weight*>(std::malloc(sizeof(lk_weight)));
    if (weight == nullptr) {
        lk_fail("no memory for a weight");
        return nullptr;
    }
    weight->format = format;
    weight->kernel = kernel;
    weight->isa = isa;
    weight->n = n;
    weight->k = k;
    weight->side_offset = 0;
    std::snprintf(weight->name, sizeof weight->name, "%s %s", format->name, isa_name(isa));
    set_layout(*weight, row_bytes);
    weight->memory = take_weight_memory(weight->bytes);
    weight->data = weight->memory.data;
    if (weight->data == nullptr) {
        lk_fail("no memory for %lld bytes of weights", (long long)weight->bytes);
        std::free(weight);
        return nullptr;
    }
    Job job{weight, blocks, row_bytes};
    if (pool == nullptr) {
        lk_worker alone{0, 1, nullptr, nullptr, 0};
        pack_share(&job, &alone);
    } else if (lk_pool_run(pool, pack_share, &job) != 0) {
        lk_weight_free(weight);
        return nullptr;
    }
    return weight;
}
