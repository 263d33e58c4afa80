// The loops of lk_peak_*, on the operations that the matmul kernels are made of.
#include "peak.h"

#include "simd.h"

namespace lk {
namespace LK_ISA_NS {
namespace {

constexpr int LANES_OF_VECTOR = 16;

#if defined(__AVX512F__)
// More than latency times the units that can start one in a cycle, and all in registers.
constexpr int CHAINS = 12;
// The compiler must take x for a new value: products of the same operands are computed once.
inline void renew(Bytes& x) { __asm__ volatile("" : "+v"(x)); }
inline void store_bytes(uint8_t* p, Bytes x) { _mm512_storeu_si512(p, x); }
inline Ints sum_of(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Bytes bytes_of(Ints x) { return x; }
#else
constexpr int CHAINS = 5;
inline void renew(Bytes& x) { __asm__ volatile("" : "+x"(x.lo), "+x"(x.hi)); }
inline void store_bytes(uint8_t* p, Bytes x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), x.hi);
}
inline Ints sum_of(Ints a, Ints b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline Bytes bytes_of(Ints x) { return {x.lo, x.hi}; }
#endif

int64_t int8_loop(int64_t rounds, uint8_t* sink) {
    const int8_t quants[4] = {1, -2, 3, -4};
    Bytes w = b_all(5);
    Ints sums[CHAINS];
    for (Ints& sum : sums) sum = i_zero();
    for (int64_t i = 0; i < rounds; ++i) {
        for (Ints& sum : sums) {
            renew(w);
            sum = dot4(sum, w, quants);
        }
    }
    Ints total = i_zero();
    for (const Ints& sum : sums) total = sum_of(total, sum);
    store_bytes(sink, bytes_of(total));
    return rounds * CHAINS * LANES_OF_VECTOR * 4 * 2;
}

int64_t float_loop(int64_t rounds, uint8_t* sink) {
    const Floats a = f_all(0.5f), b = f_all(1.0f);
    Floats sums[CHAINS];
    for (int i = 0; i < CHAINS; ++i) sums[i] = f_all(float(i));
    for (int64_t i = 0; i < rounds; ++i) {
        for (Floats& sum : sums) sum = f_fma(a, sum, b);
    }
    Floats total = f_zero();
    for (const Floats& sum : sums) total = f_add(total, sum);
    f_store(reinterpret_cast<float*>(sink), total);
    return rounds * CHAINS * LANES_OF_VECTOR * 2;
}

int64_t read_loop(const uint8_t* data, int64_t bytes, uint8_t* sink) {
    constexpr int64_t AHEAD = 4096;  // farther than the hardware looks, and no page before it
    constexpr int PARTS = 4;
    const Bytes mask = b_all(0xFF);
    Bytes seen[PARTS];
    for (Bytes& part : seen) part = b_all(0);
    const int64_t whole = bytes / (64 * PARTS) * (64 * PARTS);
    for (int64_t at = 0; at < whole; at += 64 * PARTS) {
        for (int i = 0; i < PARTS; ++i) {
            _mm_prefetch(reinterpret_cast<const char*>(data + at + 64 * i + AHEAD), _MM_HINT_T0);
            seen[i] = b_merge(seen[i], b_load(data + at + 64 * i), mask);
        }
    }
    for (int i = 1; i < PARTS; ++i) seen[0] = b_merge(seen[0], seen[i], mask);
    store_bytes(sink, seen[0]);
    return whole;
}

}  // namespace

PeakLoops peak_loops() { return {int8_loop, float_loop, read_loop}; }

}  // namespace LK_ISA_NS
}  // namespace lk
