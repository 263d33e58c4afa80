#include "weight_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <new>

namespace lk {

// A mapping that weights share: it is filled from the start, and unmapped when the last one of its
// weights goes.
struct Slab {
    uint8_t* mapping;
    int64_t mapped;
    uint8_t* start;  // the first huge page
    int64_t size, used;
    int64_t live;  // weights in it
};

namespace {

constexpr int64_t ALIGN = 64;
constexpr int64_t HUGE_PAGE = int64_t(2) << 20;
constexpr int64_t SLAB_BYTES = int64_t(32) << 20;

std::mutex mutex;
Slab* filling = nullptr;  // has room; may be empty of weights

int64_t rounded(int64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

// One that others may share if `size` is SLAB_BYTES, or as large as a single weight.
Slab* map_slab(int64_t size) {
    auto* slab = new (std::nothrow) Slab{};
    if (slab == nullptr) return nullptr;
    slab->size = size;
    slab->mapped = size + HUGE_PAGE;
    void* mapping = mmap(nullptr, size_t(slab->mapped), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) {
        delete slab;
        return nullptr;
    }
    slab->mapping = static_cast<uint8_t*>(mapping);
    const auto address = reinterpret_cast<uintptr_t>(mapping);
    slab->start = slab->mapping + (HUGE_PAGE - address % HUGE_PAGE) % HUGE_PAGE;
    madvise(slab->start, size_t(size), MADV_HUGEPAGE);  // a hint: failure costs speed only
    return slab;
}

void unmap(Slab* slab) {
    munmap(slab->mapping, size_t(slab->mapped));
    delete slab;
}

WeightMemory take_from(Slab* slab, int64_t bytes) {
    uint8_t* data = slab->start + slab->used;
    slab->used += bytes;
    ++slab->live;
    return {data, slab};
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__)

// Each weight apart, so that reading past its end is seen.
WeightMemory take_weight_memory(int64_t bytes) {
    return {static_cast<uint8_t*>(std::aligned_alloc(ALIGN, size_t(rounded(bytes)))), nullptr};
}
void give_weight_memory(const WeightMemory& memory) { std::free(memory.data); }

#else

WeightMemory take_weight_memory(int64_t bytes) {
    bytes = rounded(bytes);
    const std::lock_guard<std::mutex> lock(mutex);
    if (bytes > SLAB_BYTES / 4) {
        Slab* own = map_slab(bytes);
        return own == nullptr ? WeightMemory{nullptr, nullptr} : take_from(own, bytes);
    }
    if (filling == nullptr || filling->used + bytes > filling->size) {
        Slab* fresh = map_slab(SLAB_BYTES);
        if (fresh == nullptr) return {nullptr, nullptr};
        if (filling != nullptr && filling->live == 0) unmap(filling);
        filling = fresh;
    }
    return take_from(filling, bytes);
}

void give_weight_memory(const WeightMemory& memory) {
    if (memory.slab == nullptr) return;
    const std::lock_guard<std::mutex> lock(mutex);
    if (--memory.slab->live > 0) return;
    if (memory.slab == filling) filling = nullptr;
    unmap(memory.slab);
}

#endif

}  // namespace lk
