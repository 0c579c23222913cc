// Deadlines of fault handling, which some tests check by the clock. A slow or busy machine lengthens all of
// them by the factor SHARDWISE_TEST_TIME_SCALE, of at least 1. Hence no test may need the end of a deadline
// to pass.
#pragma once
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <source_location>
#include <stdexcept>

#include "shardwise/base/environment.h"

namespace shardwise::testing {

inline double time_scale() {
  const std::string text = base::env_text("SHARDWISE_TEST_TIME_SCALE").value_or("1");
  char* end = nullptr;
  const double scale = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !(scale >= 1))
    throw std::runtime_error("SHARDWISE_TEST_TIME_SCALE must be a factor of at least 1; got '" + text + "'");
  return scale;
}

/// Returns the deadline on this machine, in seconds.
inline double scaled_s(double deadline_s) {
  return deadline_s * time_scale();
}

/// Expects that `measured_s` is below the deadline on this machine, and prints both, because a test that
/// passes with a small reserve fails one day. tests/python/deadline.py does the same.
inline void expect_within(double measured_s, double deadline_s,
                          std::source_location where = std::source_location::current()) {
  const double limit_s = scaled_s(deadline_s);
  std::printf("deadline: %.3f s of %g s, %s:%u\n", measured_s, limit_s, where.file_name(), where.line());
  if (measured_s >= limit_s)
    ADD_FAILURE_AT(where.file_name(), static_cast<int>(where.line()))
        << "took " << measured_s << " s, and the deadline is " << limit_s << " s";
}

}  // namespace shardwise::testing
