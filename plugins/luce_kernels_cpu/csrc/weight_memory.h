// Memory for packed weights: 64-byte aligned, in huge pages where the system gives them.
//
// A step streams all weights once; with 4 KiB pages a fifth of the memory bandwidth is lost to
// address translation.
#ifndef LUCE_WEIGHT_MEMORY_H
#define LUCE_WEIGHT_MEMORY_H

#include <cstdint>

namespace lk {

struct Slab;

struct WeightMemory {
    uint8_t* data;  // NULL: there was none
    Slab* slab;
};

// Contents are undefined. Any thread.
WeightMemory take_weight_memory(int64_t bytes);
void give_weight_memory(const WeightMemory& memory);

}  // namespace lk

#endif
