// Drives the pool as kernels do. `pool_check THREADS REGIONS SPIN_US` exits 0 if each of a region's
// workers ran once, saw what the others wrote before a barrier, and the pool ended;
// `pool_check bench THREADS SPIN_US` prints nanoseconds per region and per barrier.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "luce_kernels.h"
#include "pool.h"

namespace {

constexpr int kBarriers = 3;

struct Shared {
    explicit Shared(int threads) : written(threads, -1), runs(threads), wrong(threads) {}

    // After a region: exactly its workers ran, and once.
    bool fits(int threads) {
        bool good = count >= 1 && count <= threads;
        for (int i = 0; i < threads; ++i) {
            good = good && runs[i] == (i < count ? 1 : 0) && wrong[i] == 0;
            runs[i] = 0;
        }
        return good;
    }

    std::vector<int64_t> written;  // plain memory: only the barrier orders it
    std::vector<int64_t> runs;
    std::vector<int64_t> wrong;
    int64_t region = 0;
    int count = 0;
};

void neighbours(void* context, lk_worker* worker) {
    Shared& shared = *static_cast<Shared*>(context);
    const int me = worker->index, next = (me + 1) % worker->count;
    if (me == 0) shared.count = worker->count;
    ++shared.runs[me];
    for (int round = 0; round < kBarriers; ++round) {
        shared.written[me] = shared.region * kBarriers + round;
        lk_barrier(worker);
        if (shared.written[next] != shared.region * kBarriers + round) ++shared.wrong[me];
        lk_barrier(worker);
    }
    std::memset(worker->scratch, me, static_cast<size_t>(worker->scratch_bytes));
}

int run_many(lk_pool* pool, int threads, int64_t regions) {
    Shared shared(threads);
    for (int64_t region = 0; region < regions; ++region) {
        shared.region = region;
        if (lk_pool_run(pool, neighbours, &shared)) return 3;
        if (!shared.fits(threads)) return 4;
        if (region % 64 == 63) usleep(200);  // long enough for all to sleep
        if (region % 128 == 127) lk_pool_rouse(pool);
        if (region % 256 == 255) usleep(600);  // long enough for all to sleep again
    }
    return 0;
}

bool is_refused_after_fork(lk_pool* pool, int threads) {
    if (threads == 1) return true;
    const pid_t child = fork();
    if (child == 0) {
        Shared shared(threads);
        _exit(lk_pool_run(pool, neighbours, &shared) == -1 ? 0 : 1);
    }
    int status = 1;
    return waitpid(child, &status, 0) == child && status == 0;
}

int check(int threads, int64_t regions, int spin_us) {
    lk_pool* pool = lk_pool_create(threads, spin_us, 1000);
    if (pool == nullptr || lk_pool_threads(pool) != threads) return 2;
    int failed = run_many(pool, threads, regions);
    if (!is_refused_after_fork(pool, threads)) failed = 5;
    int of_other = 0;
    std::thread other([&] { of_other = run_many(pool, threads, regions / 4); });
    const int of_caller = run_many(pool, threads, regions / 4);
    other.join();
    lk_pool_destroy(pool);
    return failed != 0 ? failed : of_other != 0 ? of_other : of_caller;
}

void nothing(void*, lk_worker*) {}

void barriers(void*, lk_worker* worker) {
    for (int i = 0; i < 300; ++i) lk_barrier(worker);
}

// A share of 20 us of work before each barrier: like the records of a small step.
void work_and_barriers(void*, lk_worker* worker) {
    for (int i = 0; i < 300; ++i) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(20) / worker->count;
        while (std::chrono::steady_clock::now() < end) {}
        lk_barrier(worker);
    }
}

double median_ns(lk_pool* pool, lk_region region, int times, int pause_us) {
    std::vector<double> taken;
    for (int i = 0; i < times; ++i) {
        if (pause_us > 0) usleep(pause_us);
        const auto start = std::chrono::steady_clock::now();
        lk_pool_run(pool, region, nullptr);
        const auto end = std::chrono::steady_clock::now();
        taken.push_back(std::chrono::duration<double, std::nano>(end - start).count());
    }
    std::sort(taken.begin(), taken.end());
    double sum = 0;
    for (double one : taken) sum += one;
    std::printf("median %.0f  p95 %.0f  mean %.0f\n", taken[taken.size() / 2],
                taken[taken.size() * 95 / 100], sum / taken.size());
    return taken[taken.size() / 2];
}

int bench(int threads, int spin_us) {
    lk_pool* pool = lk_pool_create(threads, spin_us, 0);
    if (pool == nullptr) return 2;
    std::printf("region, back to back: ");
    median_ns(pool, nothing, 2000, 0);
    std::printf("region, after 500 us: ");
    median_ns(pool, nothing, 500, 500);
    std::printf("300 barriers:         ");
    median_ns(pool, barriers, 1000, 0);
    std::printf("300 x 20 us of work:  ");
    median_ns(pool, work_and_barriers, 300, 300);
    lk_pool_destroy(pool);
    return 0;
}

}  // namespace

int main(int count, char** words) {
    if (count == 4 && std::strcmp(words[1], "bench") == 0) {
        return bench(std::atoi(words[2]), std::atoi(words[3]));
    }
    if (count != 4) return 64;
    return check(std::atoi(words[1]), std::atoll(words[2]), std::atoi(words[3]));
}
