// Chooses an instruction set's kernel of a format.
#include <initializer_list>

#include "formats.h"
#include "kernels.h"

namespace lk {
namespace {

using Find = const Kernel* (*)(int32_t type);
using FindFloat = const Kernel* (*)(Layout layout, int32_t type);

struct Families {
    Find legacy, k, float4, rocmfp, bf16;
    FindFloat others;
};

#define LK_DOT_FAMILIES(NS)                                                                \
    NS::find_legacy_kernel, NS::find_k_kernel, NS::find_float4_kernel, NS::find_rocmfp_kernel, \
        NS::find_bf16_kernel

constexpr Families AVX2{LK_DOT_FAMILIES(avx2), avx2::find_float_kernel};
constexpr Families AVX512{LK_DOT_FAMILIES(avx512), avx512::find_float_kernel};
constexpr Families VNNI{LK_DOT_FAMILIES(avx512_vnni), avx512_vnni::find_float_kernel};
#if defined(LK_WITH_AMX)
constexpr Families AMX{LK_DOT_FAMILIES(amx), avx512_vnni::find_float_kernel};
#endif

const Kernel* first_of(const Families& families, const Format& format) {
    switch (format.layout) {
        case Layout::INT8:
            for (Find find : {families.legacy, families.k, families.float4, families.rocmfp}) {
                if (const Kernel* kernel = find(format.type)) return kernel;
            }
            return nullptr;
        case Layout::PAIRS: return families.bf16(format.type);
        case Layout::PLAIN:
        case Layout::BLOCKS: return families.others(format.layout, format.type);
    }
    return nullptr;
}

}  // namespace

const Kernel* find_kernel(Isa isa, const Format& format) {
    switch (isa) {
        case Isa::AVX2: return first_of(AVX2, format);
        case Isa::AVX512: return first_of(AVX512, format);
        case Isa::AMX:
#if defined(LK_WITH_AMX)
            return first_of(AMX, format);
#else
            [[fallthrough]];
#endif
        case Isa::AVX512_VNNI: return first_of(VNNI, format);
    }
    return nullptr;
}

}  // namespace lk
