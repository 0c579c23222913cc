// A monotonic stopwatch, the longest limit of a wait, and durations formatted for people.
#pragma once
#include <algorithm>
#include <chrono>
#include <string>

namespace shardwise::base {

/// The longest limit of a wait, a hundred years: a longer one, in nanoseconds, may overflow.
inline constexpr std::chrono::milliseconds kLongestWait = std::chrono::years(100);
/// Returns `limit`, but at most kLongestWait.
constexpr std::chrono::milliseconds capped(std::chrono::milliseconds limit) {
  return std::min(limit, kLongestWait);
}

/// Seconds since construction or the last restart.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  double milliseconds() const { return seconds() * 1e3; }
  void restart() { start_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

/// Formats `seconds`, rounded to whole seconds, as "0:07", "12:34", "3:05:00" or "2 d 03:00:00".
std::string format_duration(double seconds);

}  // namespace shardwise::base
