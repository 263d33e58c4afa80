// Sixteen lanes, one per weight row of a tile, under the same names for every instruction set.
//
// Compiled once per set into its own namespace (LK_ISA_NS). Float operations are the same IEEE
// operations on each lane, and dot4 is exact, so all sets give the same bits.
#ifndef LUCE_SIMD_H
#define LUCE_SIMD_H

#ifndef LK_ISA_NS
#error "LK_ISA_NS names the namespace of the instruction set: avx2, avx512, avx512_vnni or amx"
#endif

#if defined(__AVX512F__)
#include "simd_avx512.h"
#else
#include "simd_avx2.h"
#endif

#endif
