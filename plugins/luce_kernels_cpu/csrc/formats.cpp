#include "formats.h"

#include <initializer_list>

namespace lk {

const Format* find_format(int32_t type) {
    for (auto family : {find_legacy_format, find_k_format, find_float4_format, find_rocmfp_format,
                        find_plain_format, find_code_book_format}) {
        if (const Format* format = family(type)) return format;
    }
    return nullptr;
}

}  // namespace lk
