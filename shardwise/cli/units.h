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

}  // namespace shardwise::cli
