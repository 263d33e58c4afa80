// A worker announces that it has arrived by a number of its own, which the others read: one cache
// line travels, where a shared counter and a release flag would be two. Who waits spins first,
// because the others are usually microseconds away, and then sleeps on a futex: on a machine with
// as many workers as cores, a worker may have been descheduled for another thread of the process,
// and a waiter that goes on spinning keeps its core from the one that everybody waits for.
//
// Where that happens all the time, fewer workers are faster than many that wait for each other.
// Results depend on no number of workers, so each region may have another: see Crew.
#include "pool.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "arrival.h"
#include "crew.h"
#include "error.h"

namespace {

using lk::Arrival;
using lk::Clock;

constexpr int64_t kScratchAlign = 64;
constexpr int32_t kMostThreads = 1024;

struct AlignedFree {
    void operator()(uint8_t* memory) const { std::free(memory); }
};

int usable_cores() {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

}  // namespace

struct lk_pool {
    lk_pool(int32_t count, std::chrono::nanoseconds spin_time, int64_t scratch_bytes)
        : threads(count),
          spin(spin_time),
          owner(getpid()),
          crew(count),
          starts(count),
          arrivals(count),
          cores(count) {
        for (int32_t index = 0; index < count; ++index) {
            const int64_t bytes = (scratch_bytes + kScratchAlign - 1) / kScratchAlign * kScratchAlign;
            uint8_t* memory = static_cast<uint8_t*>(
                std::aligned_alloc(kScratchAlign, bytes > 0 ? bytes : kScratchAlign));
            if (memory == nullptr) throw std::bad_alloc();
            scratch.emplace_back(memory);
            workers.push_back(lk_worker{index, count, this, memory, scratch_bytes});
        }
    }

    void start_threads() {
        for (int32_t index = 1; index < threads; ++index) {
            others.emplace_back([this, index] { serve(&workers[index]); });
        }
    }

    void stop_threads() {
        stopping.store(true, std::memory_order_relaxed);
        for (Arrival& start : starts) start.advance();
        for (std::thread& other : others) other.join();
        others.clear();
    }

    void rouse() {
        for (Arrival& start : starts) start.rouse();
    }

    void serve(lk_worker* worker) {
        for (uint32_t regions = 1;; ++regions) {
            starts[worker->index].wait_for(regions, spin, [] {});
            if (stopping.load(std::memory_order_relaxed)) return;
            keep_apart(worker->index, worker->count);
            region(context, worker);
            meet(worker);
        }
    }

    // On the calling thread. The workers that take part are idle, so that their records and
    // arrivals may be written; starting them publishes it.
    void run() {
        const Clock::time_point begun = Clock::now();
        const int32_t count = crew.count(begun);
        for (int32_t index = 0; index < count; ++index) {
            workers[index].count = count;
            if (arrivals[index].value() != arrivals[0].value()) {
                arrivals[index].set(arrivals[0].value());
            }
        }
        for (int32_t index = 1; index < count; ++index) starts[index].advance();
        slept = std::chrono::nanoseconds(0);
        keep_apart(0, count);
        region(context, &workers[0]);
        meet(&workers[0]);
        if (count > 1) crew.judge(begun, Clock::now(), slept);
    }

    // The system may queue a worker behind another one that spins, and leave it there for
    // milliseconds while a core is idle. Who finds itself on the core of a lower worker moves to one
    // that no worker is on, and may be moved on from there as any other thread.
    void keep_apart(int32_t index, int32_t count) {
        const int core = sched_getcpu();
        cores[index].store(core, std::memory_order_relaxed);
        for (int32_t other = 0; other < index; ++other) {
            if (cores[other].load(std::memory_order_relaxed) == core) {
                return move(index, count, core);
            }
        }
    }

    void move(int32_t index, int32_t count, int core) {
        cpu_set_t allowed;
        if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
        cpu_set_t free = allowed;
        CPU_CLR(core, &free);
        for (int32_t other = 0; other < count; ++other) {
            if (other != index) CPU_CLR(cores[other].load(std::memory_order_relaxed), &free);
        }
        if (CPU_COUNT(&free) == 0 || sched_setaffinity(0, sizeof free, &free) != 0) return;
        sched_setaffinity(0, sizeof allowed, &allowed);
        cores[index].store(sched_getcpu(), std::memory_order_relaxed);
    }

    void meet(lk_worker* worker) {
        const int32_t index = worker->index, count = worker->count;
        if (count == 1) return;
        // Once all have arrived the next region may begin, and change the record `worker`, while
        // this one is still on its way out.
        const auto apart = [this, index, count] { keep_apart(index, count); };
        std::chrono::nanoseconds waited(0);
        const uint32_t target = arrivals[index].advance();
        for (int32_t other = 0; other < count; ++other) {
            if (other != index) waited += arrivals[other].wait_for(target, spin, apart);
        }
        if (index == 0) slept += waited;
    }

    const int32_t threads;
    const std::chrono::nanoseconds spin;
    const pid_t owner;
    std::mutex one_region;
    lk_region region = nullptr;
    void* context = nullptr;
    lk::Crew crew;                    // of the calling thread, like `slept`
    std::chrono::nanoseconds slept{0};
    std::vector<Arrival> starts;      // of each worker: regions it was asked to take part in
    std::vector<Arrival> arrivals;    // of each worker: barriers it has reached
    std::vector<std::atomic<int>> cores;  // where each worker was last seen
    std::atomic<bool> stopping{false};
    std::vector<std::unique_ptr<uint8_t, AlignedFree>> scratch;
    std::vector<lk_worker> workers;
    std::vector<std::thread> others;
};

lk_pool* lk_pool_create(int32_t threads, int32_t spin_us, int64_t scratch_bytes) {
    if (threads < 1 || threads > kMostThreads || spin_us < 0 || scratch_bytes < 0) {
        lk_fail("a pool needs 1 to %d threads, got %d (spin_us %d, scratch_bytes %lld)",
                kMostThreads, threads, spin_us, static_cast<long long>(scratch_bytes));
        return nullptr;
    }
    // With more workers than cores, somebody who is waited for is never running.
    const std::chrono::microseconds spin(threads > usable_cores() ? 0 : spin_us);
    std::unique_ptr<lk_pool> pool;
    try {
        pool = std::make_unique<lk_pool>(threads, spin, scratch_bytes);
        pool->start_threads();
    } catch (const std::exception& error) {
        if (pool) pool->stop_threads();
        lk_fail("a pool of %d threads cannot be made: %s", threads, error.what());
        return nullptr;
    }
    return pool.release();
}

void lk_pool_destroy(lk_pool* pool) {
    if (pool == nullptr) return;
    if (pool->owner != getpid()) return;  // a forked child: the threads were never here
    pool->stop_threads();
    delete pool;
}

int32_t lk_pool_threads(const lk_pool* pool) { return pool->threads; }

void lk_pool_keep_all(lk_pool* pool, int32_t keep) {
    std::lock_guard<std::mutex> lock(pool->one_region);
    pool->crew.keep_all(keep != 0);
}

void lk_pool_rouse(lk_pool* pool) {
    if (pool->owner == getpid()) pool->rouse();
}

int lk_pool_run(lk_pool* pool, lk_region region, void* context) {
    if (pool->threads > 1 && pool->owner != getpid()) {
        return lk_fail("the thread pool was made in process %d and cannot be used after a fork",
                       static_cast<int>(pool->owner));
    }
    std::lock_guard<std::mutex> lock(pool->one_region);
    pool->region = region;
    pool->context = context;
    pool->run();
    return 0;
}

void lk_barrier(lk_worker* worker) {
    static_cast<lk_pool*>(worker->pool)->meet(worker);
}
