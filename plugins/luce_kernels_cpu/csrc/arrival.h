// A number that one thread advances and others wait for.
#ifndef LUCE_ARRIVAL_H
#define LUCE_ARRIVAL_H

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace lk {

using Clock = std::chrono::steady_clock;

constexpr int kPausesPerClock = 16;  // reading the clock costs about as much as one pause
// A wait that is longer than this may be for a thread that is queued on our own core.
constexpr std::chrono::microseconds kPatience{20};

// A number that only grows (and wraps), and the sleep of those who wait for it.
class alignas(64) Arrival {
  public:
    // Sequential consistency on both sides: either the waiter's futex call sees the new value, or
    // the signaller sees the sleeper.
    uint32_t advance() {
        const uint32_t reached = value_.fetch_add(1, std::memory_order_seq_cst) + 1;
        if (sleepers_.load(std::memory_order_seq_cst) > 0) {
            futex(FUTEX_WAKE_PRIVATE, INT_MAX);
        }
        return reached;
    }

    // Those who sleep wait awake for a while.
    void rouse() {
        if (sleepers_.load(std::memory_order_seq_cst) > 0) futex(FUTEX_WAKE_PRIVATE, INT_MAX);
    }

    // Spins for `spin`, then sleeps; roused, spins as long before it sleeps again. How long it took
    // if it was longer than `spin`, else 0: who meets whom in time is not timed. `resumed` is called
    // when the thread had given up its core.
    template <typename Resumed>
    std::chrono::nanoseconds wait_for(uint32_t target, std::chrono::nanoseconds spin,
                                      Resumed resumed) {
        if (spun_to(target, spin, resumed)) return std::chrono::nanoseconds(0);
        const Clock::time_point slept = Clock::now();
        do {
            sleepers_.fetch_add(1, std::memory_order_seq_cst);
            const uint32_t seen = value_.load(std::memory_order_seq_cst);
            if (!is_past(seen, target)) futex(FUTEX_WAIT_PRIVATE, seen);
            sleepers_.fetch_sub(1, std::memory_order_relaxed);
        } while (!spun_to(target, spin, resumed));
        resumed();
        return Clock::now() - slept + spin;
    }

    uint32_t value() const { return value_.load(std::memory_order_relaxed); }

    // Only while nobody waits.
    void set(uint32_t value) { value_.store(value, std::memory_order_relaxed); }

  private:
    static bool is_past(uint32_t seen, uint32_t target) {
        return static_cast<int32_t>(seen - target) >= 0;
    }

    template <typename Resumed>
    bool spun_to(uint32_t target, std::chrono::nanoseconds spin, Resumed resumed) const {
        const auto there = [&] { return is_past(value_.load(std::memory_order_acquire), target); };
        if (there()) return true;
        if (spin.count() <= 0) return false;
        const Clock::time_point begun = Clock::now();
        for (Clock::time_point now = begun; now - begun < spin; now = Clock::now()) {
            for (int i = 0; i < kPausesPerClock; ++i) {
                _mm_pause();
                if (there()) return true;
            }
            if (now - begun > kPatience) {
                sched_yield();
                resumed();
            }
        }
        return there();
    }

    void futex(int operation, uint32_t argument) {
        static_assert(sizeof value_ == sizeof(uint32_t), "a futex is 32 bits");
        syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), operation, argument, nullptr,
                nullptr, 0);
    }

    std::atomic<uint32_t> value_{0};
    std::atomic<int32_t> sleepers_{0};
};

}  // namespace lk

#endif
