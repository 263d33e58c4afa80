// Chooses an instruction set's kernel of a format.
#include <initializer_list>

#include "formats.h"
#include "kernels.h"

namespace lk {
namespace {

using Find = const Kernel* (*)(int32_t type);

#define LK_INT8_FAMILIES(NS) \
    {NS::find_legacy_kernel, NS::find_k_kernel, NS::find_float4_kernel, NS::find_rocmfp_kernel}

const Kernel* first_of(int32_t type, std::initializer_list<Find> families) {
    for (Find find : families) {
        if (const Kernel* kernel = find(type)) return kernel;
    }
    return nullptr;
}

}  // namespace

const Kernel* find_kernel(Isa isa, const Format& format) {
    const bool is_int8 = format.layout == Layout::INT8;
    switch (isa) {
        case Isa::AVX2:
            return is_int8 ? first_of(format.type, LK_INT8_FAMILIES(avx2))
                           : avx2::find_float_kernel(format.layout, format.type);
        case Isa::AVX512:
            return is_int8 ? first_of(format.type, LK_INT8_FAMILIES(avx512))
                           : avx512::find_float_kernel(format.layout, format.type);
        case Isa::AMX:
#if defined(LK_WITH_AMX)
            if (is_int8) return first_of(format.type, LK_INT8_FAMILIES(amx));
#endif
            [[fallthrough]];
        case Isa::AVX512_VNNI:
            return is_int8 ? first_of(format.type, LK_INT8_FAMILIES(avx512_vnni))
                           : avx512_vnni::find_float_kernel(format.layout, format.type);
    }
    return nullptr;
}

}  // namespace lk
