#include "shardwise/text/stop_strings.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace shardwise::text::stop_strings_test {
namespace {

/// Returns the output for `text` in chunks of `size` bytes.
std::string filtered(const std::string& text, const std::vector<std::string>& stops, size_t size) {
  StopStrings stop(stops);
  std::string result;
  for (size_t i = 0; i < text.size() && !stop.is_found(); i += size)
    result += stop.push(text.substr(i, size));
  return result + stop.finish();
}

TEST(StopStrings, EndTheTextIndependentlyOfItsChunks) {
  for (size_t size = 1; size <= 12; ++size) {
    EXPECT_EQ(filtered("one, two\n\nthree", {"\n\n"}, size), "one, two");
    EXPECT_EQ(filtered("aabaabaac", {"aabaac", "c"}, size), "aab");
    EXPECT_EQ(filtered("ababab", {"abc"}, size), "ababab");
    EXPECT_EQ(filtered("ab###", {"####", "b#"}, size), "a");
    EXPECT_EQ(filtered("abcd", {"abcd", "bc"}, size), "a");
    EXPECT_EQ(filtered("stop", {"stop"}, size), "");
    EXPECT_EQ(filtered("no stop here", {}, size), "no stop here");
  }
}

TEST(StopStrings, HoldBackOnlyPrefixesOfStopStrings) {
  StopStrings stop({"END"});
  EXPECT_EQ(stop.push("the E"), "the ");
  EXPECT_EQ(stop.push("N"), "");
  EXPECT_EQ(stop.push("E"), "EN");
  EXPECT_FALSE(stop.is_found());
  EXPECT_EQ(stop.push("ND and more"), "");
  EXPECT_TRUE(stop.is_found());
  EXPECT_EQ(stop.push("more"), "");
  EXPECT_EQ(stop.finish(), "");
}

TEST(StopStrings, RejectEmptyStrings) {
  EXPECT_THROW(StopStrings({"x", ""}), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::text::stop_strings_test
