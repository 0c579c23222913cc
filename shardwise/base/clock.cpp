#include "shardwise/base/clock.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

namespace shardwise::base {

std::string format_duration(double seconds) {
  const auto rounded = static_cast<int64_t>(std::llround(seconds));
  const int64_t days = rounded / 86400, hours = rounded / 3600 % 24, minutes = rounded / 60 % 60;
  if (days > 0) return fmt::format("{} d {:02}:{:02}:{:02}", days, hours, minutes, rounded % 60);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, rounded % 60);
  return fmt::format("{}:{:02}", minutes, rounded % 60);
}

}  // namespace shardwise::base
