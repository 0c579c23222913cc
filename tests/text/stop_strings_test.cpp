#include "shardwise/text/stop_strings.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace shardwise::text::stop_strings_test {
namespace {

/// All that is shown of `text` when it comes in pieces of `size` bytes.
std::string shown(const std::string& text, const std::vector<std::string>& stops, size_t size) {
  StopStrings stop(stops);
  std::string result;
  for (size_t i = 0; i < text.size() && !stop.is_found(); i += size)
    result += stop.push(text.substr(i, size));
  return result + stop.finish();
}

TEST(StopStrings, EndBeforeTheFirstThatIsFoundHoweverTheTextComes) {
  for (size_t size = 1; size <= 12; ++size) {
    EXPECT_EQ(shown("one, two\n\nthree", {"\n\n"}, size), "one, two");
    EXPECT_EQ(shown("aabaabaac", {"aabaac", "c"}, size), "aab");
    EXPECT_EQ(shown("ababab", {"abc"}, size), "ababab");
    EXPECT_EQ(shown("ab###", {"####", "b#"}, size), "a");
    EXPECT_EQ(shown("abcd", {"abcd", "bc"}, size), "a");
    EXPECT_EQ(shown("stop", {"stop"}, size), "");
    EXPECT_EQ(shown("no stop here", {}, size), "no stop here");
  }
}

TEST(StopStrings, HoldBackNoMoreThanMayBecomeOne) {
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

TEST(StopStrings, HoldACharacter) {
  EXPECT_THROW(StopStrings({"x", ""}), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::text::stop_strings_test
