// Which instruction sets the processor and the operating system offer, and which one is in use.
#ifndef LUCE_ISA_H
#define LUCE_ISA_H

#include <cstdint>

namespace lk {

enum class Isa : int32_t { AVX2 = 0, AVX512 = 1, AVX512_VNNI = 2, AMX = 3 };

// The best that the machine has, or what lk_force_isa chose. Weights keep the one of their packing.
Isa current_isa();
const char* isa_name(Isa isa);

}  // namespace lk

#endif
