// Tiles of BF16 weights by bfloat16 activations; on AMX those of F16 too (bf16_wide.h).
//
// Without tile registers: the sums of bf16_wide.h in its order, so that every instruction set gives
// the same bits. Products of two bfloat16 are exact in float32.
#include "bf16.h"
#include "kernels.h"
#include "simd.h"

#if defined(__AMX_BF16__)
#include "bf16_wide.h"
#endif

namespace lk {
namespace LK_ISA_NS {
namespace {

#if defined(__AMX_BF16__)

constexpr Kernel BF16_KERNEL = bf16_kernel<Pairs>();
constexpr Kernel F16_KERNEL = bf16_kernel<Splits>();

#else

constexpr int PAIR_BYTES = LANES * 4;
constexpr int TILE_BYTES = BLOCK / 2 * PAIR_BYTES;  // of a block

// Rounded activations as floats [rows][32 * blocks].
void put_rounded(const Rows& rows, int64_t blocks, int32_t* out) {
    for (int r = 0; r < rows.count; ++r) {
        int32_t* to = out + r * rows.sums_stride;
        for (int64_t block = 0; block < blocks; ++block, to += BLOCK) {
            const RowBlock from(rows, r, block);
            for (int i = 0; i < BLOCK; ++i) to[i] = int32_t(bf16_bits(from.values[i]));
        }
    }
}

template <int M>
__attribute__((noinline)) void add_rows(const uint8_t* w, int64_t blocks, const float* x,
                                        int64_t x_stride, const uint8_t* next, float* out) {
    Floats total[M];
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) total[r] = f_zero();
    for (int64_t block = 0; block < blocks; ++block, w += TILE_BYTES, x += BLOCK) {
        for (int i = 0; next != nullptr && i < TILE_BYTES; i += 64) {
            _mm_prefetch(reinterpret_cast<const char*>(next + block * TILE_BYTES + i), _MM_HINT_T0);
        }
        Floats even[M], odd[M];
#pragma GCC unroll 8
        for (int r = 0; r < M; ++r) even[r] = odd[r] = f_zero();
        for (int i = 0; i < BLOCK; i += 2) {
            const Floats w0 = f_from_even_bf16(w + i / 2 * PAIR_BYTES);
            const Floats w1 = f_from_odd_bf16(w + i / 2 * PAIR_BYTES);
#pragma GCC unroll 8
            for (int r = 0; r < M; ++r) {
                even[r] = f_fma(w0, f_all(x[r * x_stride + i]), even[r]);
                odd[r] = f_fma(w1, f_all(x[r * x_stride + i + 1]), odd[r]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < M; ++r) total[r] = f_add(total[r], f_add(even[r], odd[r]));
    }
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) f_store(out + r * LANES, total[r]);
}

// Subnormals as the tile instructions have them, while it lives.
class FlushedSubnormals {
  public:
    FlushedSubnormals() : usual_(_mm_getcsr()) {
        constexpr unsigned FLUSH_RESULTS = 1u << 15, FLUSH_OPERANDS = 1u << 6;
        _mm_setcsr(usual_ | FLUSH_RESULTS | FLUSH_OPERANDS);
    }
    ~FlushedSubnormals() { _mm_setcsr(usual_); }
    FlushedSubnormals(const FlushedSubnormals&) = delete;
    FlushedSubnormals& operator=(const FlushedSubnormals&) = delete;

  private:
    unsigned usual_;
};

void bf16_tile(const lk_weight& weight, int64_t tile, const Rows& rows, float* out, uint8_t*) {
    const FlushedSubnormals flushed;
    const uint8_t* w = weight.tile(tile);
    const auto* x = reinterpret_cast<const float*>(rows.sums);
    const int64_t blocks = weight.blocks(), stride = rows.sums_stride;
    const uint8_t* next = rows.next;
    for (int left = rows.count; left > 0; left -= MAX_ROWS) {
        switch (left) {
            case 1: add_rows<1>(w, blocks, x, stride, next, out); break;
            case 2: add_rows<2>(w, blocks, x, stride, next, out); break;
            case 3: add_rows<3>(w, blocks, x, stride, next, out); break;
            case 4: add_rows<4>(w, blocks, x, stride, next, out); break;
            case 5: add_rows<(MAX_ROWS < 5 ? MAX_ROWS : 5)>(w, blocks, x, stride, next, out); break;
            case 6: add_rows<(MAX_ROWS < 6 ? MAX_ROWS : 6)>(w, blocks, x, stride, next, out); break;
            case 7: add_rows<(MAX_ROWS < 7 ? MAX_ROWS : 7)>(w, blocks, x, stride, next, out); break;
            default: add_rows<MAX_ROWS>(w, blocks, x, stride, next, out);
        }
        x += MAX_ROWS * stride;
        out += MAX_ROWS * LANES;
        next = nullptr;
    }
}

constexpr Kernel BF16_KERNEL = one_method({BLOCK, put_rounded, bf16_tile});

#endif

}  // namespace

const Kernel* find_bf16_kernel(int32_t type) {
#if defined(__AMX_BF16__)
    if (type == 1) return &F16_KERNEL;
#endif
    return type == 30 ? &BF16_KERNEL : nullptr;
}

}  // namespace LK_ISA_NS
}  // namespace lk
