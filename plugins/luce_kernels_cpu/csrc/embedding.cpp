// lk_embedding: rows of a packed table, exactly as the file's blocks mean them.
#include "formats.h"
#include "kernels.h"
#include "luce_kernels.h"
#include "table_row.h"

namespace lk {
namespace {

// The 32 values of a lane: scale * code value + minimum.
void int8_values(const Format& format, const Scales& scales, const uint8_t* codes, float* out) {
    for (int j = 0; j < BLOCK; ++j) {
        const int half = j / 16;
        const int value = format.table ? format.table[codes[j]] : int(codes[j]) - format.offset;
        out[j] = scales.scale[half] * float(value);
        if (format.has_minimum) out[j] += scales.minimum[half];
    }
}

void int8_row(const lk_weight& weight, int64_t row, float* out) {
    const Format& format = *weight.format;
    const uint8_t* tile = weight.tile(row / LANES);
    const int lane = int(row % LANES);
    for (int64_t block = 0; block < weight.k / BLOCK; ++block) {
        const int64_t file_block = block / format.subs();
        const uint8_t* side = tile + weight.side_offset + file_block * format.side_bytes;
        uint8_t codes[BLOCK];
        get_codes(format.planes, tile + block * planes_bytes(format.planes), lane, codes);
        int8_values(format, format.scales(side, int(block % format.subs()), lane), codes,
                    out + block * BLOCK);
    }
}

// Elements or file blocks `step` bytes apart.
void decoded_row(const lk_weight& weight, const uint8_t* first, int64_t step, float* out) {
    const Format& format = *weight.format;
    for (int64_t i = 0; i < weight.k / format.block_values; ++i) {
        format.decode(first + i * step, out + i * format.block_values);
    }
}

void pairs_row(const lk_weight& weight, const uint8_t* first, float* out) {
    const Format& format = *weight.format;
    const int64_t bytes = format.block_bytes;
    for (int64_t i = 0; i < weight.k; ++i) {
        format.decode(first + (i / 2 * 2 * LANES + i % 2) * bytes, out + i);
    }
}

}  // namespace

void table_row(const lk_weight& weight, int64_t row, float* out) {
    const int64_t bytes = weight.format->block_bytes;
    const uint8_t* tile = weight.tile(row / LANES);
    switch (weight.format->layout) {
        case Layout::INT8: return int8_row(weight, row, out);
        case Layout::PLAIN:
            return decoded_row(weight, tile + row % LANES * bytes, LANES * bytes, out);
        case Layout::PAIRS: return pairs_row(weight, tile + row % LANES * 2 * bytes, out);
        case Layout::BLOCKS: {
            const int64_t row_bytes = weight.tile_bytes / LANES;
            return decoded_row(weight, tile + row % LANES * row_bytes, bytes, out);
        }
    }
}

}  // namespace lk

void lk_embedding(const void* args, const lk_batch* batch, lk_worker* worker) {
    const auto& a = *static_cast<const lk_embedding_args*>(args);
    const int32_t rows = lk_row_count(&a.out, batch);
    for (int32_t row = worker->index; row < rows; row += worker->count) {
        lk::table_row(*a.table, batch->token_ids[row], a.out.data + row * a.out.stride);
    }
}
