// Conversion of measured values to the units that commands print.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace shardwise::cli {

inline double milliseconds(int64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

inline double megabytes(int64_t bytes) {
  return static_cast<double>(bytes) / 1e6;
}

inline std::string in_megabytes(int64_t bytes, int digits = 2) {
  return fmt::format("{:.{}f} MB", megabytes(bytes), digits);
}

/// Returns "12.34 ms", "2.46 s" or "1 h 03 min".
inline std::string in_seconds(double seconds) {
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  if (seconds < 3600) return fmt::format("{:.2f} s", seconds);
  const auto minutes = static_cast<int64_t>(seconds / 60 + 0.5);
  return fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
}

/// Returns "step: 12.87 ms measured, 12.31 ms planned (-4.4 %)".
inline std::string compared(const char* what, double measured_seconds, double planned_seconds) {
  return fmt::format("{}: {} measured, {} planned ({:+.1f} %)", what, in_seconds(measured_seconds),
                     in_seconds(planned_seconds), 100 * (planned_seconds / measured_seconds - 1));
}

}  // namespace shardwise::cli
