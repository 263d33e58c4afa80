// lk_peak_*: the best of several short runs on all workers.
#include "peak.h"

#include <atomic>
#include <chrono>
#include <cstring>

#include "error.h"
#include "isa.h"
#include "pool.h"
#include "weight_memory.h"

namespace lk {
namespace {

constexpr int RUNS = 33;  // others may want the cores meanwhile
constexpr int64_t ROUNDS = 1 << 19;  // some milliseconds
constexpr int64_t LEAST_BYTES = 1 << 20, MOST_BYTES = int64_t(1) << 34;

PeakLoops loops_of(Isa isa) {
    switch (isa) {
        case Isa::AVX2: return avx2::peak_loops();
        case Isa::AVX512: return avx512::peak_loops();
        default: return avx512_vnni::peak_loops();
    }
}

enum class What { INT8, FLOATS, READ, FILL };

struct Run {
    What what;
    PeakLoops loops;
    uint8_t* data;
    int64_t bytes;
    std::atomic<int64_t> done;
};

void work(void* context, lk_worker* worker) {
    Run& run = *static_cast<Run*>(context);
    alignas(64) uint8_t sink[64];
    const int64_t from = run.bytes / 64 * worker->index / worker->count * 64;
    const int64_t to = run.bytes / 64 * (worker->index + 1) / worker->count * 64;
    int64_t done = 0;
    switch (run.what) {
        case What::INT8: done = run.loops.int8(ROUNDS, sink); break;
        case What::FLOATS: done = run.loops.floats(ROUNDS, sink); break;
        case What::READ: done = run.loops.read(run.data + from, to - from, sink); break;
        case What::FILL: std::memset(run.data + from, 1, size_t(to - from)); break;
    }
    run.done.fetch_add(done, std::memory_order_relaxed);
}

double best_of(lk_pool* pool, Run& run) {
    double best = 0;
    for (int i = 0; i < RUNS; ++i) {
        run.done.store(0, std::memory_order_relaxed);
        const auto begun = std::chrono::steady_clock::now();
        if (lk_pool_run(pool, work, &run) != 0) return 0;
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
        const double rate = double(run.done.load(std::memory_order_relaxed)) / took.count();
        if (rate > best) best = rate;
    }
    return best;
}

double peak(lk_pool* pool, What what) {
    Run run{what, loops_of(current_isa()), nullptr, 0, {}};
    return best_of(pool, run);
}

}  // namespace
}  // namespace lk

extern "C" LK_API double lk_peak_int8(lk_pool* pool) { return lk::peak(pool, lk::What::INT8); }

extern "C" LK_API double lk_peak_float(lk_pool* pool) { return lk::peak(pool, lk::What::FLOATS); }

extern "C" LK_API double lk_peak_read(lk_pool* pool, int64_t bytes) {
    using namespace lk;
    if (bytes < LEAST_BYTES || bytes > MOST_BYTES) {
        lk_fail("a buffer of %lld bytes is out of range", static_cast<long long>(bytes));
        return 0;
    }
    const WeightMemory memory = take_weight_memory(bytes);
    if (memory.data == nullptr) {
        lk_fail("no memory for %lld bytes", static_cast<long long>(bytes));
        return 0;
    }
    Run run{What::FILL, loops_of(current_isa()), memory.data, bytes, {}};
    double rate = 0;
    if (lk_pool_run(pool, work, &run) == 0) {
        run.what = What::READ;
        rate = best_of(pool, run);
    }
    give_weight_memory(memory);
    return rate;
}
