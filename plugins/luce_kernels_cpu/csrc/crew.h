// How many workers of a pool are worth using.
#ifndef LUCE_CREW_H
#define LUCE_CREW_H

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace lk {

// How many workers take part in the next region. Where the caller slept for most of a region, the
// others were kept from running, and half as many do the next ones. After a while all try again; if
// it is no better, the next while is twice as long.
class Crew {
  public:
    using Clock = std::chrono::steady_clock;

    explicit Crew(int32_t most) : most_(most), count_(most) {}

    int32_t count(Clock::time_point now) {
        if (count_ < most_ && (keep_all_ || now >= retry_)) count_ = most_;
        return count_;
    }

    void keep_all(bool keep) { keep_all_ = keep; }

    void judge(Clock::time_point begun, Clock::time_point ended, std::chrono::nanoseconds slept) {
        if (ended - begun < kShortest) return;
        if (slept * 2 > ended - begun) {
            patience_ = count_ == most_ ? std::min(patience_ * 2, kMostPatience) : patience_;
            count_ = std::max(1, count_ / 2);
            retry_ = ended + patience_;
        } else if (count_ == most_) {
            patience_ = kLeastPatience;
        }
    }

  private:
    // In less than this, waking the others up may be all that there was to wait for.
    static constexpr std::chrono::microseconds kShortest{300};
    static constexpr std::chrono::milliseconds kLeastPatience{10}, kMostPatience{320};

    const int32_t most_;
    int32_t count_;
    bool keep_all_ = false;
    std::chrono::milliseconds patience_ = kLeastPatience;
    Clock::time_point retry_;
};

}  // namespace lk

#endif
