// The time that a rank waited, in the message of its error.
#pragma once
#include <gtest/gtest.h>

#include <source_location>
#include <string>

#include "tests/support/deadline.h"

namespace shardwise::testing {

/// Returns the W of the last "rank R waited W s" in `text`; fails the test and returns 0 if there is none.
inline double waited_s(const std::string& text, int rank) {
  const std::string words = "rank " + std::to_string(rank) + " waited ";
  const size_t found = text.rfind(words);
  if (found != std::string::npos) return std::stod(text.substr(found + words.size()));
  ADD_FAILURE() << "no '" << words << "' in: " << text;
  return 0;
}

/// Expects an error of a rank that waited until its timeout, and at most a second longer.
inline void expect_waited_for_timeout(const std::string& text, int rank, double timeout_s,
                                      std::source_location where = std::source_location::current()) {
  constexpr double kRounding = 0.005;  // of the message
  const double waited = waited_s(text, rank);
  EXPECT_GE(waited, timeout_s - kRounding) << text;
  expect_within(waited, timeout_s + 1, where);
}

}  // namespace shardwise::testing
