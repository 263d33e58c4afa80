// One float vector type for all ISA variants: `vf` of W float32 lanes (8 or 16). Only this header
// knows intrinsics of the plain operations; sources that include it are compiled once per ISA,
// each into its own namespace, and without contraction of a * b + c (-ffp-contract=off), so that
// fma() is the only fused operation.
#ifndef LUCE_VEC_H
#define LUCE_VEC_H

#include <immintrin.h>
#include <stdint.h>

namespace lk {
namespace LK_ISA_NS {

#if defined(__AVX512F__)

constexpr int W = 16;
using vf = __m512;
using vi = __m512i;

static inline vf zero() { return _mm512_setzero_ps(); }
static inline vf set1(float x) { return _mm512_set1_ps(x); }
static inline vf load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf negfma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
// Both give b where an operand is NaN.
static inline vf max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf abs(vf a) { return _mm512_abs_ps(a); }
static inline vf floor(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | 8); }
static inline vf trunc(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_ZERO | 8); }
static inline vf nearest(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | 8); }
static inline vi to_int(vf a) { return _mm512_cvtps_epi32(a); }
static inline vf to_float(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vf bits(vi a) { return _mm512_castsi512_ps(a); }
static inline vi bits(vf a) { return _mm512_castps_si512(a); }
static inline vi seti(int32_t x) { return _mm512_set1_epi32(x); }
static inline vi lanes() {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
static inline vi loadi(const int32_t* p) { return _mm512_loadu_si512(p); }
static inline void storei(int32_t* p, vi x) { _mm512_storeu_si512(p, x); }
static inline vi addi(vi a, vi b) { return _mm512_add_epi32(a, b); }

using vm = __mmask16;
static inline vm first(int n) { return (vm)((1u << n) - 1); }  // n of 0..W lanes
static inline vm greater(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
static inline vm is_nan(vf a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
static inline vm either(vm a, vm b) { return (vm)(a | b); }
static inline bool any(vm m) { return m != 0; }
static inline vf select(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }
static inline vi select(vm m, vi yes, vi no) { return _mm512_mask_blend_epi32(m, no, yes); }
// Lanes beyond the first n are 0, and not read.
static inline vf load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
static inline void store_first(float* p, vf x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }

static inline vf from_half(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
}
static inline vf from_bf16(const uint8_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
    return bits(_mm512_slli_epi32(wide, 16));
}
static inline vf from_int8(const uint8_t* p) {
    return to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
// The low 4 bits (high: bits 4..7) of W bytes, less 8.
static inline vf from_nibbles(const uint8_t* p, bool high) {
    const __m128i bytes = _mm_loadu_si128((const __m128i*)p);
    const __m128i moved = high ? _mm_srli_epi16(bytes, 4) : bytes;
    const __m128i low = _mm_and_si128(moved, _mm_set1_epi8(15));
    return to_float(_mm512_sub_epi32(_mm512_cvtepu8_epi32(low), seti(8)));
}
static inline void to_half(uint8_t* p, vf x) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | 8));
}
// The low byte or 16 bits of each lane.
static inline void store_bytes(uint8_t* p, vi x) {
    _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(x));
}
static inline void store_shorts(uint8_t* p, vi x) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(x));
}
static inline vi shift_right(vi a, int n) { return _mm512_srli_epi32(a, (unsigned)n); }
static inline vi shift_left(vi a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
static inline vi andi(vi a, vi b) { return _mm512_and_si512(a, b); }
static inline vi ori(vi a, vi b) { return _mm512_or_si512(a, b); }
static inline vi xori(vi a, vi b) { return _mm512_xor_si512(a, b); }
static inline vm equali(vi a, vi b) { return _mm512_cmpeq_epi32_mask(a, b); }

static inline __m256 fold(vf x, bool high) {
    return _mm256_castsi256_ps(high ? _mm512_extracti64x4_epi64(bits(x), 1)
                                    : _mm512_castsi512_si256(bits(x)));
}

#else

constexpr int W = 8;
using vf = __m256;
using vi = __m256i;

static inline vf zero() { return _mm256_setzero_ps(); }
static inline vf set1(float x) { return _mm256_set1_ps(x); }
static inline vf load(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf negfma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
// Both give b where an operand is NaN.
static inline vf max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf floor(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEG_INF | 8); }
static inline vf trunc(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_ZERO | 8); }
static inline vf nearest(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | 8); }
static inline vi to_int(vf a) { return _mm256_cvtps_epi32(a); }
static inline vf to_float(vi a) { return _mm256_cvtepi32_ps(a); }
static inline vf bits(vi a) { return _mm256_castsi256_ps(a); }
static inline vi bits(vf a) { return _mm256_castps_si256(a); }
static inline vi seti(int32_t x) { return _mm256_set1_epi32(x); }
static inline vi lanes() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
static inline vi loadi(const int32_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
static inline void storei(int32_t* p, vi x) { _mm256_storeu_si256((__m256i*)p, x); }
static inline vi addi(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline vi shift_right(vi a, int n) { return _mm256_srli_epi32(a, n); }
static inline vi shift_left(vi a, int n) { return _mm256_slli_epi32(a, n); }
static inline vi andi(vi a, vi b) { return _mm256_and_si256(a, b); }
static inline vi ori(vi a, vi b) { return _mm256_or_si256(a, b); }
static inline vi xori(vi a, vi b) { return _mm256_xor_si256(a, b); }
static inline vf abs(vf a) { return bits(andi(bits(a), seti(0x7fffffff))); }

using vm = __m256;  // all bits of a lane
static inline vm first(int n) { return bits(_mm256_cmpgt_epi32(seti(n), lanes())); }
static inline vm greater(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
static inline vm is_nan(vf a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
static inline vm equali(vi a, vi b) { return bits(_mm256_cmpeq_epi32(a, b)); }
static inline vm either(vm a, vm b) { return _mm256_or_ps(a, b); }
static inline bool any(vm m) { return _mm256_movemask_ps(m) != 0; }
static inline vf select(vm m, vf yes, vf no) { return _mm256_blendv_ps(no, yes, m); }
static inline vi select(vm m, vi yes, vi no) {
    return bits(_mm256_blendv_ps(bits(no), bits(yes), m));
}
// Lanes beyond the first n are 0, and not read.
static inline vf load_first(const float* p, int n) {
    return _mm256_maskload_ps(p, bits(first(n)));
}
static inline void store_first(float* p, vf x, int n) {
    _mm256_maskstore_ps(p, bits(first(n)), x);
}

static inline vf from_half(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
}
static inline vf from_bf16(const uint8_t* p) {
    return bits(shift_left(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
static inline vf from_int8(const uint8_t* p) {
    return to_float(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
// The low 4 bits (high: bits 4..7) of W bytes, less 8.
static inline vf from_nibbles(const uint8_t* p, bool high) {
    const __m128i bytes = _mm_loadl_epi64((const __m128i*)p);
    const __m128i moved = high ? _mm_srli_epi16(bytes, 4) : bytes;
    const __m128i low = _mm_and_si128(moved, _mm_set1_epi8(15));
    return to_float(_mm256_sub_epi32(_mm256_cvtepu8_epi32(low), seti(8)));
}
static inline void to_half(uint8_t* p, vf x) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | 8));
}
// The low byte or 16 bits of each lane.
static inline void store_shorts(uint8_t* p, vi x) {
    const vi low = andi(x, seti(0xffff));
    const vi packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(packed));
}
static inline void store_bytes(uint8_t* p, vi x) {
    const vi low = andi(x, seti(0xff));
    const vi shorts = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    const __m128i half = _mm256_castsi256_si128(shorts);
    _mm_storel_epi64((__m128i*)p, _mm_packus_epi16(half, half));
}

#endif

// The lanes' sum and largest value, in one fixed tree.
static inline float sum_lanes(vf x) {
#if defined(__AVX512F__)
    const __m256 y = _mm256_add_ps(fold(x, false), fold(x, true));
#else
    const __m256 y = x;
#endif
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_shuffle_ps(z, z, 1)));
}
static inline float max_lanes(vf x) {
#if defined(__AVX512F__)
    const __m256 y = _mm256_max_ps(fold(x, false), fold(x, true));
#else
    const __m256 y = x;
#endif
    __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_shuffle_ps(z, z, 1)));
}
static inline float first_lane(vf x) {
#if defined(__AVX512F__)
    return _mm512_cvtss_f32(x);
#else
    return _mm256_cvtss_f32(x);
#endif
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
