// One row of activations to int8 per 32 or 256 values: inline, so that norm and swiglu can fuse it.
// The same bits on every instruction set.
//
// d = max|x| / 127, q = x * (127 / max|x|) to the nearest, ties to even. Per 32 values as ggml's
// Q8_1: s is d * sum(q) in float32, where ggml stores both as fp16. Per 256 as its Q8_K: with the
// sums of 16 quants as int16. Blocks whose largest value is below 2^-120 become zeros. A block with
// a NaN or an infinity gets d = NaN (and s = NaN) and q = 0, so that whatever reads the row becomes
// NaN.
#ifndef LUCE_QUANTIZE_ROW_H
#define LUCE_QUANTIZE_ROW_H

#include <immintrin.h>

#include <cstdint>
#include <limits>

#include "luce_kernels.h"

namespace lk {
namespace LK_ISA_NS {

constexpr float LEAST_QUANTISED = 0x1p-120f;

struct BlockScale {
    float d, inverse;
};

// Of a block whose largest magnitude is `largest`, infinity or NaN for a block with either.
static inline BlockScale block_scale(float largest) {
    if (!(largest <= std::numeric_limits<float>::max())) {
        return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
    }
    if (largest < LEAST_QUANTISED) return {0.0f, 0.0f};
    return {largest / 127.0f, 127.0f / largest};
}

#if defined(__AVX512F__)

static inline void quantize_block(const float* x, int8_t* q, float* d, float* s) {
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    // Magnitudes compare as integers, with NaN above infinity.
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    const __m512i largest = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                                             _mm512_and_si512(_mm512_castps_si512(b), magnitude));
    const uint32_t bits = _mm512_reduce_max_epu32(largest);
    float top;
    __builtin_memcpy(&top, &bits, 4);
    const BlockScale scale = block_scale(top);
    __m512i qa = _mm512_setzero_si512(), qb = qa;
    if (scale.inverse != 0.0f) {
        const __m512 inverse = _mm512_set1_ps(scale.inverse);
        qa = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse));
        qb = _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(qa));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm512_cvtepi32_epi8(qb));
    *d = scale.d;
    *s = scale.d * float(_mm512_reduce_add_epi32(_mm512_add_epi32(qa, qb)));
}

static inline float largest_of_256(const float* x) {
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    __m512i largest[2] = {};
    for (int i = 0; i < 256; i += 32) {
        for (int j = 0; j < 2; ++j) {
            const __m512i bits = _mm512_loadu_si512(x + i + 16 * j);
            largest[j] = _mm512_max_epu32(largest[j], _mm512_and_si512(bits, magnitude));
        }
    }
    const uint32_t bits = _mm512_reduce_max_epu32(_mm512_max_epu32(largest[0], largest[1]));
    float top;
    __builtin_memcpy(&top, &bits, 4);
    return top;
}

static inline __m128i sixteen_quants(const float* x, float inverse) {
    return _mm512_cvtepi32_epi8(
        _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(inverse))));
}

#else

static inline uint32_t largest_of(__m256i x) {
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
    return uint32_t(_mm_cvtsi128_si32(_mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1))));
}
static inline int32_t sum_of(__m256i x) {
    __m128i m = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(m, _mm_shuffle_epi32(m, 0xB1)));
}

static inline void quantize_block(const float* x, int8_t* q, float* d, float* s) {
    __m256 v[4];
    __m256i largest = _mm256_setzero_si256();
    // Magnitudes compare as integers, with NaN above infinity.
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    for (int i = 0; i < 4; ++i) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        largest = _mm256_max_epu32(largest,
                                   _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    const uint32_t bits = largest_of(largest);
    float top;
    __builtin_memcpy(&top, &bits, 4);
    const BlockScale scale = block_scale(top);
    __m256i quants[4] = {};
    if (scale.inverse != 0.0f) {
        const __m256 inverse = _mm256_set1_ps(scale.inverse);
        for (int i = 0; i < 4; ++i) quants[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    }
    // The packs work on 128-bit halves: groups of four come out as 0 2 4 6 1 3 5 7.
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(quants[0], quants[1]),
                                             _mm256_packs_epi32(quants[2], quants[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q),
                        _mm256_permutevar8x32_epi32(bytes, order));
    *d = scale.d;
    *s = scale.d * float(sum_of(_mm256_add_epi32(_mm256_add_epi32(quants[0], quants[1]),
                                                 _mm256_add_epi32(quants[2], quants[3]))));
}

static inline float largest_of_256(const float* x) {
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i largest[2] = {};
    for (int i = 0; i < 256; i += 16) {
        for (int j = 0; j < 2; ++j) {
            const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + i + 8 * j));
            largest[j] = _mm256_max_epu32(largest[j], _mm256_and_si256(bits, magnitude));
        }
    }
    const uint32_t bits = largest_of(_mm256_max_epu32(largest[0], largest[1]));
    float top;
    __builtin_memcpy(&top, &bits, 4);
    return top;
}

static inline __m128i sixteen_quants(const float* x, float inverse) {
    const __m256 all = _mm256_set1_ps(inverse);
    const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), all));
    const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), all));
    // The pack works on 128-bit halves.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8);
    return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

#endif

static inline void quantize_super(const float* x, int8_t* q, float* d, int16_t* sums) {
    const BlockScale scale = block_scale(largest_of_256(x));
    const __m128i middle = _mm_set1_epi8(char(0x80));
    for (int i = 0; i < 16; ++i) {
        // Not 0 * x: x may be infinite.
        const __m128i quants = scale.inverse != 0.0f ? sixteen_quants(x + 16 * i, scale.inverse)
                                                     : _mm_setzero_si128();
        _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16 * i), quants);
        const __m128i halves = _mm_sad_epu8(_mm_xor_si128(quants, middle), _mm_setzero_si128());
        sums[i] = int16_t(_mm_cvtsi128_si32(halves) + _mm_extract_epi16(halves, 4) - 16 * 128);
    }
    *d = scale.d;
}

// The int8 form of n values that begin at column `at` of a row; both are whole blocks.
static inline void quantize_values(const lk_quantized& to, const float* x, int64_t row, int64_t at,
                                   int32_t n) {
    int8_t* q = to.q + row * to.q_stride + at;
    float* d = to.d + row * to.d_stride;
    float* s = to.s + row * to.d_stride;
    if (to.block == 32) {
        for (int32_t i = 0; i < n; i += 32) {
            quantize_block(x + i, q + i, d + (at + i) / 32, s + (at + i) / 32);
        }
        return;
    }
    auto* sums = reinterpret_cast<int16_t*>(s);
    for (int32_t i = 0; i < n; i += 256) {
        quantize_super(x + i, q + i, d + (at + i) / 256, sums + (at + i) / 16);
    }
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
