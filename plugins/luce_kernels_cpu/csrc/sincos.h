// Sine and cosine of float32 angles, absolute error under 2e-7 for |angle| < 2^30.
#ifndef LUCE_SINCOS_H
#define LUCE_SINCOS_H

#include "vec.h"

namespace lk {
namespace LK_ISA_NS {

#if defined(__AVX512F__)
using vd = __m512d;
using vq = __m256i;
static inline vd low_doubles(vf x) { return _mm512_cvtps_pd(fold(x, false)); }
static inline vd high_doubles(vf x) { return _mm512_cvtps_pd(fold(x, true)); }
static inline vd reduced(vd x, vq* quarter) {
    const vd n = _mm512_roundscale_pd(_mm512_mul_pd(x, _mm512_set1_pd(0x1.45f306dc9c883p-1)),
                                      _MM_FROUND_TO_NEAREST_INT | 8);
    *quarter = _mm512_cvtpd_epi32(n);
    const vd r = _mm512_fnmadd_pd(n, _mm512_set1_pd(0x1.921fb54442d18p+0), x);
    return _mm512_fnmadd_pd(n, _mm512_set1_pd(0x1.1a62633145c07p-54), r);
}
static inline vf joined(vd low, vd high) {
    const __m256i a = _mm256_castps_si256(_mm512_cvtpd_ps(low));
    const __m256i b = _mm256_castps_si256(_mm512_cvtpd_ps(high));
    return bits(_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1));
}
static inline vi joined(vq low, vq high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
#else
using vd = __m256d;
using vq = __m128i;
static inline vd low_doubles(vf x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
static inline vd high_doubles(vf x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
static inline vd reduced(vd x, vq* quarter) {
    const vd n = _mm256_round_pd(_mm256_mul_pd(x, _mm256_set1_pd(0x1.45f306dc9c883p-1)),
                                 _MM_FROUND_TO_NEAREST_INT | 8);
    *quarter = _mm256_cvtpd_epi32(n);
    const vd r = _mm256_fnmadd_pd(n, _mm256_set1_pd(0x1.921fb54442d18p+0), x);
    return _mm256_fnmadd_pd(n, _mm256_set1_pd(0x1.1a62633145c07p-54), r);
}
static inline vf joined(vd low, vd high) {
    return _mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low));
}
static inline vi joined(vq low, vq high) { return _mm256_set_m128i(high, low); }
#endif

static inline void sincos(vf angle, vf* sine, vf* cosine) {
    // The angle less whole quarter turns, in double: pi / 2 in two parts.
    vq low_quarter, high_quarter;
    const vd low = reduced(low_doubles(angle), &low_quarter);
    const vd high = reduced(high_doubles(angle), &high_quarter);
    const vf r = joined(low, high), z = mul(r, r);
    const vi quarter = joined(low_quarter, high_quarter);
    // (sin r / r - 1) / z and (cos r - 1 + z / 2) / z^2 on |r| <= pi / 4: least maximum error,
    // 4e-9 and 1e-10.
    vf p = fma(set1(-0x1.994cfap-13f), z, set1(0x1.11075cp-7f));
    p = fma(p, z, set1(-0x1.555546p-3f));
    const vf s = fma(mul(p, z), r, r);
    vf q = fma(set1(0x1.9a00ccp-16f), z, set1(-0x1.6c0c86p-10f));
    q = fma(q, z, set1(0x1.55554ap-5f));
    const vf c = fma(mul(q, z), z, fma(set1(-0.5f), z, set1(1.0f)));

    const vm swapped = equali(andi(quarter, seti(1)), seti(1));
    const vi sine_sign = shift_left(andi(quarter, seti(2)), 30);
    const vi cosine_sign = shift_left(andi(addi(quarter, seti(1)), seti(2)), 30);
    *sine = bits(xori(bits(select(swapped, c, s)), sine_sign));
    *cosine = bits(xori(bits(select(swapped, s, c)), cosine_sign));
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
