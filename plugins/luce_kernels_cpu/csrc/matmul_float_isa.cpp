// Tiles of F32 and F16 weights, and of types that are decoded as they are used, with float
// activations.
//
// Per element: values are multiplied and added in float32 in runs of 32 consecutive k, even and
// odd k apart; runs are added with their rounding errors kept beside (Knuth's two-sum). No more
// error than a dot product with many partial sums has, in an order that knows no row count.
#include "formats.h"
#include "kernels.h"
#include "simd.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

struct F32 {
    static constexpr int BYTES = 4;
    static inline Floats load(const uint8_t* p) {
        return f_load(reinterpret_cast<const float*>(p));
    }
};
struct F16 {
    static constexpr int BYTES = 2;
    static inline Floats load(const uint8_t* p) { return f_from_half(p); }
};

// A row's sums so far and what rounding took from them, [rows][16] each.
struct Sums {
    float* total;
    float* lost;
};

template <int BYTES>
inline void fetch_run(const uint8_t* at) {
    for (int i = 0; i < BYTES; i += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(at + i), _MM_HINT_T1);
    }
}

// Adds k values of M rows to the sums, and fetches as many bytes from `next`, if it is not NULL.
template <class E, int M>
void add_rows(const uint8_t* w, int64_t k, const float* x, int64_t x_stride, Sums sums,
              const uint8_t* next) {
    constexpr int STEP = E::BYTES * LANES;
    Floats total[M], lost[M];
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) {
        total[r] = f_load(sums.total + r * LANES);
        lost[r] = f_load(sums.lost + r * LANES);
    }
    for (int64_t at = 0; at < k; at += BLOCK) {
        const int64_t run = k - at < BLOCK ? k - at : BLOCK;
        if (next != nullptr) fetch_run<STEP * BLOCK>(next + at * STEP);
        Floats even[M], odd[M];
#pragma GCC unroll 8
        for (int r = 0; r < M; ++r) even[r] = odd[r] = f_zero();
        for (int64_t i = 0; i + 1 < run; i += 2, w += 2 * STEP) {
            const Floats w0 = E::load(w), w1 = E::load(w + STEP);
            const float* value = x + at + i;
#pragma GCC unroll 8
            for (int r = 0; r < M; ++r) {
                even[r] = f_fma(w0, f_all(value[r * x_stride]), even[r]);
                odd[r] = f_fma(w1, f_all(value[r * x_stride + 1]), odd[r]);
            }
        }
        if (run % 2) {
            const Floats w0 = E::load(w);
            for (int r = 0; r < M; ++r) {
                even[r] = f_fma(w0, f_all(x[r * x_stride + at + run - 1]), even[r]);
            }
            w += STEP;
        }
#pragma GCC unroll 8
        for (int r = 0; r < M; ++r) {
            const Floats part = f_add(even[r], odd[r]);
            const Floats sum = f_add(total[r], part);
            const Floats added = f_sub(sum, total[r]);
            const Floats error = f_add(f_sub(total[r], f_sub(sum, added)), f_sub(part, added));
            lost[r] = f_add(lost[r], error);
            total[r] = sum;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) {
        f_store(sums.total + r * LANES, total[r]);
        f_store(sums.lost + r * LANES, lost[r]);
    }
}

template <class E>
void add_all_rows(const uint8_t* w, int64_t k, const float* x, int64_t x_stride, int count,
                  Sums sums, const uint8_t* next) {
    while (count > 0) {
        const int rows = count < MAX_ROWS ? count : MAX_ROWS;
        switch (rows) {
            case 1: add_rows<E, 1>(w, k, x, x_stride, sums, next); break;
            case 2: add_rows<E, 2>(w, k, x, x_stride, sums, next); break;
            case 3: add_rows<E, 3>(w, k, x, x_stride, sums, next); break;
            case 4: add_rows<E, 4>(w, k, x, x_stride, sums, next); break;
            default:
                if constexpr (MAX_ROWS > 4) {
                    if (rows == 5) add_rows<E, 5>(w, k, x, x_stride, sums, next);
                    if (rows == 6) add_rows<E, 6>(w, k, x, x_stride, sums, next);
                    if (rows == 7) add_rows<E, 7>(w, k, x, x_stride, sums, next);
                    if (rows == 8) add_rows<E, 8>(w, k, x, x_stride, sums, next);
                }
        }
        next = nullptr;
        count -= rows;
        x += rows * x_stride;
        sums = {sums.total + rows * LANES, sums.lost + rows * LANES};
    }
}

Sums start(int count, float* out, uint8_t* lost) {
    const Sums sums{out, reinterpret_cast<float*>(lost)};
    for (int i = 0; i < count * LANES; ++i) sums.total[i] = sums.lost[i] = 0.0f;
    return sums;
}

// Errors are no numbers where sums are infinite: those stay what they are.
void finish(int count, Sums sums) {
    for (int i = 0; i < count * LANES; ++i) {
        if (sums.lost[i] == sums.lost[i]) sums.total[i] += sums.lost[i];
    }
}

template <class E>
void plain_tile(const lk_weight& weight, int64_t tile, const Rows& rows, float* out,
                uint8_t* work) {
    const Sums sums = start(rows.count, out, work);
    add_all_rows<E>(weight.tile(tile), weight.k, rows.x, rows.x_stride, rows.count, sums,
                    rows.next);
    finish(rows.count, sums);
}

// Values of up to DECODE_VALUES k of 16 file rows, as [k][16]; rows past n are zero.
int64_t decode_piece(const lk_weight& weight, int64_t tile, int64_t at, float* decoded) {
    const Format& format = *weight.format;
    const int64_t room = DECODE_VALUES / format.block_values * format.block_values;
    const int64_t k = weight.k - at < room ? weight.k - at : room;
    const int64_t row_bytes = weight.tile_bytes / LANES;
    const uint8_t* first = weight.tile(tile) + at / format.block_values * format.block_bytes;
    float values[DECODE_VALUES];
    for (int lane = 0; lane < LANES; ++lane) {
        const bool real = tile * LANES + lane < weight.n;
        const uint8_t* block = first + lane * row_bytes;
        for (int64_t i = 0; real && i < k; i += format.block_values) {
            format.decode(block, values + i);
            block += format.block_bytes;
        }
        for (int64_t i = 0; i < k; ++i) decoded[i * LANES + lane] = real ? values[i] : 0.0f;
    }
    return k;
}

void block_tile(const lk_weight& weight, int64_t tile, const Rows& rows, float* out,
                uint8_t* work) {
    float* decoded = reinterpret_cast<float*>(work);
    const Sums sums = start(rows.count, out, work + DECODED_BYTES);
    for (int64_t at = 0; at < weight.k;) {
        const int64_t k = decode_piece(weight, tile, at, decoded);
        add_all_rows<F32>(reinterpret_cast<const uint8_t*>(decoded), k, rows.x + at, rows.x_stride,
                          rows.count, sums, nullptr);
        at += k;
    }
    finish(rows.count, sums);
}

constexpr Kernel F32_KERNEL = one_method({0, nullptr, plain_tile<F32>});
constexpr Kernel F16_KERNEL = one_method({0, nullptr, plain_tile<F16>});
constexpr Kernel BLOCK_KERNEL = one_method({0, nullptr, block_tile});

}  // namespace

const Kernel* find_float_kernel(Layout layout, int32_t type) {
    if (layout == Layout::BLOCKS) return &BLOCK_KERNEL;
    switch (type) {
        case 0: return &F32_KERNEL;
        case 1: return &F16_KERNEL;
        default: return nullptr;
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk
