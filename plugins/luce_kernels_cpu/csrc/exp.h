// e^x on float vectors: error under 1.1 ulp, the same bits in every lane. e^-inf = 0, overflow
// gives inf, underflow is gradual, NaN stays NaN.
#ifndef LUCE_EXP_H
#define LUCE_EXP_H

#include "vec.h"

namespace lk {
namespace LK_ISA_NS {

// p * 2^n, n of -152..129, rounded once.
static inline vf times_power_of_2(vf p, vf n) {
#if defined(__AVX512F__)
    return _mm512_scalef_ps(p, n);
#else
    // Two factors, since neither 2^128 nor 2^-150 is a normal float.
    const vi whole = to_int(n);
    const vi half = _mm256_srai_epi32(whole, 1);
    const vi rest = _mm256_sub_epi32(whole, half);
    const vf a = bits(shift_left(addi(half, seti(127)), 23));
    const vf b = bits(shift_left(addi(rest, seti(127)), 23));
    return mul(mul(p, a), b);
#endif
}

static inline vf exp(vf x) {
    // The clamps pass NaN on: max and min give their second operand then.
    x = min(set1(89.0f), max(set1(-105.0f), x));
    const vf n = nearest(mul(x, set1(0x1.715476p+0f)));
    // ln 2 in two parts; n times the first is exact.
    vf r = negfma(n, set1(0x1.63p-1f), x);
    r = negfma(n, set1(-0x1.bd0106p-13f), r);
    // (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2: least maximum error of e^r, 3e-9 relative.
    vf q = set1(0x1.6a23d0p-10f);
    q = fma(q, r, set1(0x1.123a20p-7f));
    q = fma(q, r, set1(0x1.5558f2p-5f));
    q = fma(q, r, set1(0x1.555492p-3f));
    q = fma(q, r, set1(0x1.fffffcp-2f));
    const vf p = add(fma(q, mul(r, r), r), set1(1.0f));
    return times_power_of_2(p, n);
}

}  // namespace LK_ISA_NS
}  // namespace lk

#endif
