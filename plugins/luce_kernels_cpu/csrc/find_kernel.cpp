// Chooses an instruction set's kernel of a format.
#include <initializer_list>

#include "formats.h"
#include "kernels.h"

namespace lk {
namespace {

using Find = const Kernel* (*)(int32_t type);

const Kernel* first_of(int32_t type, Find legacy, Find k, Find float4) {
    for (Find find : {legacy, k, float4}) {
        if (const Kernel* kernel = find(type)) return kernel;
    }
    return nullptr;
}

}  // namespace

const Kernel* find_kernel(Isa isa, const Format& format) {
    const bool is_int8 = format.layout == Layout::INT8;
    switch (isa) {
        case Isa::AVX2:
            return is_int8 ? first_of(format.type, avx2::find_legacy_kernel, avx2::find_k_kernel,
                                      avx2::find_float4_kernel)
                           : avx2::find_float_kernel(format.layout, format.type);
        case Isa::AVX512:
            return is_int8 ? first_of(format.type, avx512::find_legacy_kernel,
                                      avx512::find_k_kernel, avx512::find_float4_kernel)
                           : avx512::find_float_kernel(format.layout, format.type);
        case Isa::AMX:
#if defined(LK_WITH_AMX)
            if (is_int8) {
                return first_of(format.type, amx::find_legacy_kernel, amx::find_k_kernel,
                                amx::find_float4_kernel);
            }
#endif
            [[fallthrough]];
        case Isa::AVX512_VNNI:
            return is_int8 ? first_of(format.type, avx512_vnni::find_legacy_kernel,
                                      avx512_vnni::find_k_kernel, avx512_vnni::find_float4_kernel)
                           : avx512_vnni::find_float_kernel(format.layout, format.type);
    }
    return nullptr;
}

}  // namespace lk
