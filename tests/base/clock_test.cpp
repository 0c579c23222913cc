#include "shardwise/base/clock.h"

#include <gtest/gtest.h>

namespace shardwise::base::clock_test {
namespace {

TEST(FormatDuration, AddsHoursAndDaysAsNeeded) {
  EXPECT_EQ(format_duration(6.6), "0:07");
  EXPECT_EQ(format_duration(754), "12:34");
  EXPECT_EQ(format_duration(3 * 3600 + 5 * 60), "3:05:00");
  EXPECT_EQ(format_duration(2 * 86400 + 3 * 3600 + 59), "2 d 03:00:59");
}

}  // namespace
}  // namespace shardwise::base::clock_test
