// The sixteen-lane operations on AVX2, FMA and F16C: two registers each. Included by simd.h.
#include <immintrin.h>

#include <cstdint>

namespace lk {
namespace LK_ISA_NS {

struct Floats { __m256 lo, hi; };  // lanes 0..7, 8..15
struct Ints { __m256i lo, hi; };   // the same
struct Bytes { __m256i lo, hi; };  // 8 lanes of 4 consecutive k, twice

constexpr int MAX_ROWS = 4;
constexpr int TURN = 1;

static inline Floats f_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline Floats f_all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline Floats f_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void f_store(float* p, Floats x) {
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
static inline Floats f_add(Floats a, Floats b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
static inline Floats f_sub(Floats a, Floats b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
static inline Floats f_mul(Floats a, Floats b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
static inline Floats f_fma(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline Floats f_negative(Floats a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}

static inline __m128i half_register(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
static inline __m128i eight(const uint8_t* p) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
static inline Floats f_from_ints(Ints x) {
    return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)};
}
static inline Ints i_from_u8(const uint8_t* p) {
    return {_mm256_cvtepu8_epi32(eight(p)), _mm256_cvtepu8_epi32(eight(p + 8))};
}
static inline Floats f_from_half(const uint8_t* p) {
    return {_mm256_cvtph_ps(half_register(p)), _mm256_cvtph_ps(half_register(p + 16))};
}
// The 16 even and odd ones of pairs of bfloat16.
static inline __m256i eight_pairs(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
static inline Floats f_from_even_bf16(const uint8_t* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(eight_pairs(p), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(eight_pairs(p + 32), 16))};
}
static inline Floats f_from_odd_bf16(const uint8_t* p) {
    const __m256i upper = _mm256_set1_epi32(int32_t(0xFFFF0000));
    return {_mm256_castsi256_ps(_mm256_and_si256(eight_pairs(p), upper)),
            _mm256_castsi256_ps(_mm256_and_si256(eight_pairs(p + 32), upper))};
}
static inline Ints i_from_s8(const uint8_t* p) {
    return {_mm256_cvtepi8_epi32(eight(p)), _mm256_cvtepi8_epi32(eight(p + 8))};
}
static inline Ints i_from_low_nibbles(const uint8_t* p) {
    const Ints x = i_from_u8(p);
    const __m256i mask = _mm256_set1_epi32(15);
    return {_mm256_and_si256(x.lo, mask), _mm256_and_si256(x.hi, mask)};
}
static inline Ints i_from_high_nibbles(const uint8_t* p) {
    const Ints x = i_from_u8(p);
    return {_mm256_srli_epi32(x.lo, 4), _mm256_srli_epi32(x.hi, 4)};
}
// 2^(e - 128) of exponent bytes e: subnormal for e below 2 (MXFP4's scale, halved).
static inline __m256 eight_from_exponents(__m256i e) {
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small));
}
static inline Floats f_from_exponents(const uint8_t* p) {
    const Ints e = i_from_u8(p);
    return {eight_from_exponents(e.lo), eight_from_exponents(e.hi)};
}

// Scale bytes of the ROCmFP types: 4 bits of exponent and 3 of mantissa, half of e4m3. They are
// those of a half, whose exponents begin 7 lower; halves below the normal ones are exact too.
static inline __m256 eight_from_e4m3(const uint8_t* p) {
    const __m128i halves = _mm_slli_epi16(_mm_cvtepu8_epi16(eight(p)), 7);
    return _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(128.0f));
}
static inline Floats f_from_e4m3(const uint8_t* p) {
    return {eight_from_e4m3(p), eight_from_e4m3(p + 8)};
}

static inline Ints i_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
static inline Ints i_all(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline Ints i_add(Ints a, Ints b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
static inline Ints i_mul(Ints a, Ints b) {
    return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}
// Two 16-bit words per lane: `low` is not negative, both fit.
static inline Ints i_pair(Ints low, Ints high) {
    return {_mm256_or_si256(low.lo, _mm256_slli_epi32(high.lo, 16)),
            _mm256_or_si256(low.hi, _mm256_slli_epi32(high.hi, 16))};
}
// Lane sums of two products of 16-bit words.
static inline Ints dot2(Ints sum, Ints a, Ints b) {
    return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(a.lo, b.lo)),
            _mm256_add_epi32(sum.hi, _mm256_madd_epi16(a.hi, b.hi))};
}

static inline Bytes b_load(const uint8_t* p) {
    const auto* v = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
static inline Bytes b_all(uint8_t x) {
    return {_mm256_set1_epi8(char(x)), _mm256_set1_epi8(char(x))};
}
static inline Bytes b_and(Bytes a, Bytes b) {
    return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
// base | (field & mask)
static inline Bytes b_merge(Bytes base, Bytes field, Bytes mask) {
    const Bytes bits = b_and(field, mask);
    return {_mm256_or_si256(base.lo, bits.lo), _mm256_or_si256(base.hi, bits.hi)};
}
// Bits move by S places (right if positive) inside 16-bit words: mask the result.
template <int S>
static inline Bytes b_shift(Bytes x) {
    if constexpr (S > 0) return {_mm256_srli_epi16(x.lo, S), _mm256_srli_epi16(x.hi, S)};
    if constexpr (S < 0) return {_mm256_slli_epi16(x.lo, -S), _mm256_slli_epi16(x.hi, -S)};
    return x;
}
static inline Bytes b_table(const int8_t* values) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
    return {_mm256_broadcastsi128_si256(v), _mm256_broadcastsi128_si256(v)};
}
static inline Bytes b_lookup(Bytes table, Bytes codes) {
    return {_mm256_shuffle_epi8(table.lo, codes.lo), _mm256_shuffle_epi8(table.hi, codes.hi)};
}

static inline __m256i four_quants(const int8_t* q) {
    int32_t word;
    __builtin_memcpy(&word, q, 4);
    return _mm256_set1_epi32(word);
}
static inline __m256i pairs_to_sum(__m256i sum, __m256i pairs) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
// Lane sums of w * q over 4 k; w unsigned, up to 127: the 16-bit sums of two products cannot
// saturate.
static inline Ints dot4(Ints sum, Bytes w, const int8_t* q) {
    const __m256i x = four_quants(q);
    return {pairs_to_sum(sum.lo, _mm256_maddubs_epi16(w.lo, x)),
            pairs_to_sum(sum.hi, _mm256_maddubs_epi16(w.hi, x))};
}
// As dot4 for w up to 255, but multiplies w - 128 (see simd_avx512.h).
constexpr bool OFFSET_IN_SUM = false;
static inline __m256i signed_dot4(__m256i sum, __m256i w, __m256i x) {
    // |w - 128| times q with the sign of w - 128: q is never -128.
    const __m256i v = _mm256_xor_si256(w, _mm256_set1_epi8(char(0x80)));
    return pairs_to_sum(sum, _mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(x, v)));
}
static inline Ints dot4_offset(Ints sum, Bytes w, const int8_t* q) {
    const __m256i x = four_quants(q);
    return {signed_dot4(sum.lo, w.lo, x), signed_dot4(sum.hi, w.hi, x)};
}

}  // namespace LK_ISA_NS
}  // namespace lk
