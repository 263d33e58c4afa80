#include "isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>

#include "error.h"
#include "luce_kernels.h"

namespace lk {
namespace {

constexpr int NONE = -1;
constexpr const char* NAMES[] = {"avx2", "avx512", "avx512-vnni", "amx"};

// XCR0 bits (Intel SDM, volume 1, chapter 13): registers whose state the system saves.
constexpr uint64_t YMM_STATE = 0x06;
constexpr uint64_t ZMM_STATE = 0xE6;
constexpr uint64_t TILE_STATE = 0x60000;

bool all(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

#if defined(LK_WITH_AMX)
// CPUID 7, edx; and of its next leaf, eax.
constexpr uint32_t AMX_BF16 = 1u << 22, FP16 = 1u << 23, AMX_TILE = 1u << 24, AMX_INT8 = 1u << 25;
constexpr uint32_t AVX512_BF16 = 1u << 5;

bool has_tiles(uint32_t d) {
    uint32_t more, b, c, unused;
    return all(d, AMX_TILE | AMX_INT8 | AMX_BF16 | FP16) &&
           __get_cpuid_count(7, 1, &more, &b, &c, &unused) && all(more, AVX512_BF16);
}

// A process must ask Linux for tile registers once (arch_prctl(2)); its threads have them then.
bool may_use_tiles() {
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#endif

uint64_t saved_states() {
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t(high) << 32) | low;
}

int detect() {
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !all(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C)) {
        return NONE;
    }
    const uint64_t states = saved_states();
    if ((states & YMM_STATE) != YMM_STATE || !__get_cpuid_count(7, 0, &a, &b, &c, &d) ||
        !all(b, bit_AVX2 | bit_BMI2)) {
        return NONE;
    }
    const uint32_t wanted = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    if ((states & ZMM_STATE) != ZMM_STATE || !all(b, wanted)) return int(Isa::AVX2);
    if (!all(c, bit_AVX512VNNI)) return int(Isa::AVX512);
#if defined(LK_WITH_AMX)
    if (has_tiles(d) && (states & TILE_STATE) == TILE_STATE && may_use_tiles()) {
        return int(Isa::AMX);
    }
#endif
    return int(Isa::AVX512_VNNI);
}

int best() {
    static const int found = detect();
    return found;
}

std::atomic<int> forced{NONE};

}  // namespace

Isa current_isa() {
    const int chosen = forced.load(std::memory_order_relaxed);
    return Isa(chosen != NONE ? chosen : best());
}

const char* isa_name(Isa isa) { return int(isa) < 0 ? "none" : NAMES[int(isa)]; }

}  // namespace lk

extern "C" LK_API const char* lk_isa(void) { return lk::isa_name(lk::current_isa()); }

extern "C" LK_API const char* lk_isas(void) {
    static const std::string names = [] {
        std::string joined;
        for (int isa = lk::best(); isa >= 0; --isa) {
            joined += lk::NAMES[isa];
            if (isa > 0) joined += ' ';
        }
        return joined;
    }();
    return names.c_str();
}

extern "C" LK_API int32_t lk_force_isa(const char* name) {
    for (int isa = 0; name != nullptr && isa < 4; ++isa) {
        if (std::strcmp(name, lk::NAMES[isa]) != 0) continue;
        if (isa > lk::best()) return lk_fail("this processor has no %s: it has %s", name, lk_isa());
        lk::forced.store(isa, std::memory_order_relaxed);
        return 0;
    }
    return lk_fail("no instruction set '%s': known are avx2, avx512, avx512-vnni, amx",
                   name == nullptr ? "" : name);
}
