// The tile instructions of AMX. As assembly: gcc 12's own macros let stores
// move past the tile loads that read them.
#ifndef LUCE_AMX_H
#define LUCE_AMX_H

#include <cstdint>

namespace lk {
namespace LK_ISA_NS {

// What LDTILECFG reads (Intel SDM, volume 1, chapter 18).
struct alignas(64) TileShapes {
    uint8_t palette, start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static inline void tile_shapes(const TileShapes& shapes) {
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}
static inline void tile_release() { __asm__ volatile("tilerelease" : : : "memory"); }

template <int T>
static inline void tile_zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(T));
}
template <int T>
static inline void tile_load(const void* at, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(at), "r"(stride), "i"(T) : "memory");
}
template <int T>
static inline void tile_store(void* at, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(at), "r"(stride), "i"(T) : "memory");
}
// SUM += A x B: rows of signed bytes by columns of signed bytes, four rows of a column together.
template <int SUM, int A, int B>
static inline void tile_dot() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(A), "i"(B));
}
// The same with unsigned bytes in B.
template <int SUM, int A, int B>
static inline void tile_dot_unsigned() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(A), "i"(B));
}

// SUM += A x B: rows of pairs of bfloat16 by columns of such pairs.
template <int SUM, int A, int B>
static inline void tile_dot_bf16() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(A), "i"(B));
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
