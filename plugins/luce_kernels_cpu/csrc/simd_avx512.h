// The sixteen-lane operations on AVX-512 F, BW, VL, DQ, with or without VNNI. Included by simd.h.
#include <immintrin.h>

#include <cstdint>

namespace lk {
namespace LK_ISA_NS {

using Floats = __m512;  // 16 lanes
using Ints = __m512i;   // 16 lanes
using Bytes = __m512i;  // 16 lanes of 4 consecutive k

// Rows of activations that share one pass over a tile: 8 sums, 8 byte vectors, scales and
// temporaries fit 32 registers.
constexpr int MAX_ROWS = 8;

static inline Floats f_zero() { return _mm512_setzero_ps(); }
static inline Floats f_all(float x) { return _mm512_set1_ps(x); }
static inline Floats f_load(const float* p) { return _mm512_loadu_ps(p); }
static inline void f_store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
static inline Floats f_add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
static inline Floats f_sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
static inline Floats f_mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
static inline Floats f_fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
static inline Floats f_negative(Floats a) {
    return _mm512_castsi512_ps(
        _mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32(INT32_MIN)));
}

static inline __m128i sixteen(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
static inline __m256i sixteen_words(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
static inline Floats f_from_half(const uint8_t* p) { return _mm512_cvtph_ps(sixteen_words(p)); }
static inline Floats f_from_bf16(__m256i words) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
// The 16 even and odd ones of pairs of bfloat16.
static inline Floats f_from_even_bf16(const uint8_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
static inline Floats f_from_odd_bf16(const uint8_t* p) {
    const __m512i upper = _mm512_set1_epi32(int32_t(0xFFFF0000));
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), upper));
}
static inline Ints i_from_u8(const uint8_t* p) { return _mm512_cvtepu8_epi32(sixteen(p)); }
static inline Ints i_from_s8(const uint8_t* p) { return _mm512_cvtepi8_epi32(sixteen(p)); }
static inline Ints i_from_low_nibbles(const uint8_t* p) {
    return _mm512_and_si512(i_from_u8(p), _mm512_set1_epi32(15));
}
static inline Ints i_from_high_nibbles(const uint8_t* p) {
    return _mm512_srli_epi32(i_from_u8(p), 4);
}
// 2^(e - 128) of exponent bytes e: subnormal for e below 2 (MXFP4's scale, halved).
static inline Floats f_from_exponents(const uint8_t* p) {
    const __m512i e = _mm512_cvtepu8_epi32(sixteen(p));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small));
}
// Scale bytes of the ROCmFP types: 4 bits of exponent and 3 of mantissa, half of e4m3. They are
// those of a half, whose exponents begin 7 lower; halves below the normal ones are exact too.
static inline Floats f_from_e4m3(const uint8_t* p) {
    const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(sixteen(p)), 7);
    return _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(128.0f));
}
static inline Floats f_from_ints(Ints x) { return _mm512_cvtepi32_ps(x); }

static inline Ints i_zero() { return _mm512_setzero_si512(); }
static inline Ints i_all(int32_t x) { return _mm512_set1_epi32(x); }
static inline Ints i_load(const int32_t* p) { return _mm512_loadu_si512(p); }
static inline Ints i_add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
static inline Ints i_mul(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }
// Two 16-bit words per lane: `low` is not negative, both fit.
static inline Ints i_pair(Ints low, Ints high) {
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

static inline Bytes b_load(const uint8_t* p) { return _mm512_loadu_si512(p); }
static inline Bytes b_all(uint8_t x) { return _mm512_set1_epi8(char(x)); }
static inline void b_store(uint8_t* p, Bytes x) { _mm512_storeu_si512(p, x); }
static inline Bytes b_sub(Bytes a, Bytes b) { return _mm512_sub_epi8(a, b); }
static inline Bytes b_and(Bytes a, Bytes b) { return _mm512_and_si512(a, b); }
// base | (field & mask)
static inline Bytes b_merge(Bytes base, Bytes field, Bytes mask) {
    return _mm512_ternarylogic_epi32(field, mask, base, 0xEA);
}
// Bits move by S places (right if positive) inside 16-bit words: mask the result.
template <int S>
static inline Bytes b_shift(Bytes x) {
    if constexpr (S > 0) return _mm512_srli_epi16(x, S);
    if constexpr (S < 0) return _mm512_slli_epi16(x, -S);
    return x;
}
static inline Bytes b_table(const int8_t* values) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
}
static inline Bytes b_lookup(Bytes table, Bytes codes) { return _mm512_shuffle_epi8(table, codes); }

static inline __m512i four_quants(const int8_t* q) {
    int32_t word;
    __builtin_memcpy(&word, q, 4);
    return _mm512_set1_epi32(word);
}

#if defined(__AVX512VNNI__)

constexpr int TURN = MAX_ROWS;
// Lane sums of w * q over 4 k; w unsigned.
static inline Ints dot4(Ints sum, Bytes w, const int8_t* q) {
    return _mm512_dpbusd_epi32(sum, w, four_quants(q));
}
// As dot4 for w up to 255. OFFSET_IN_SUM: what it multiplies is w itself, and the caller starts
// from -128 times the sum of q; otherwise it multiplies w - 128.
constexpr bool OFFSET_IN_SUM = true;
static inline Ints dot4_offset(Ints sum, Bytes w, const int8_t* q) { return dot4(sum, w, q); }
// Lane sums of two products of 16-bit words.
static inline Ints dot2(Ints sum, Ints a, Ints b) { return _mm512_dpwssd_epi32(sum, a, b); }

#else

constexpr int TURN = 1;
static inline Ints pairs_to_sum(Ints sum, __m512i pairs) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
// w up to 127: the 16-bit sums of two products cannot saturate.
static inline Ints dot4(Ints sum, Bytes w, const int8_t* q) {
    return pairs_to_sum(sum, _mm512_maddubs_epi16(w, four_quants(q)));
}
constexpr bool OFFSET_IN_SUM = false;
static inline Ints dot4_offset(Ints sum, Bytes w, const int8_t* q) {
    // |w - 128| times q with the sign of w - 128: q is never -128.
    const __m512i x = four_quants(q);
    const __m512i v = _mm512_xor_si512(w, _mm512_set1_epi8(char(0x80)));
    const __m512i signed_x =
        _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(v), _mm512_setzero_si512(), x);
    return pairs_to_sum(sum, _mm512_maddubs_epi16(_mm512_abs_epi8(v), signed_x));
}
static inline Ints dot2(Ints sum, Ints a, Ints b) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
}

#endif

}  // namespace LK_ISA_NS
}  // namespace lk
