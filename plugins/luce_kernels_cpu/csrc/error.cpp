#include "error.h"

#include <cstdarg>
#include <cstdio>

#include "luce_kernels.h"

namespace {
thread_local char last_error[512];
}

int lk_fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return -1;
}

const char* lk_last_error(void) { return last_error; }

int32_t lk_abi_version(void) { return LK_ABI_VERSION; }
