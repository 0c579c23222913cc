#include "shardwise/text/utf8.h"

#include <gtest/gtest.h>

namespace shardwise::text::utf8_test {
namespace {

const std::string kR(kReplacement);

TEST(Utf8, ReplacesMaximalSubparts) {
  EXPECT_EQ(replace_invalid("a\xff"), "a" + kR);
  EXPECT_EQ(replace_invalid("\xf0\x9f\x98!"), kR + "!");
  EXPECT_EQ(replace_invalid("\xe2\x82"), kR);
  EXPECT_EQ(replace_invalid("\xed\xa0\x80"), kR + kR + kR);  // a surrogate
  EXPECT_EQ(replace_invalid("\xc0\xaf"), kR + kR);           // overlong
  EXPECT_EQ(replace_invalid("\xf4\x90\x80\x80"), kR + kR + kR + kR);
  EXPECT_EQ(replace_invalid("\xf0\x9f\x98\x80 \xc3\xa9"), "\xf0\x9f\x98\x80 \xc3\xa9");
}

TEST(Utf8, ReplacedTextIsUtf8) {
  EXPECT_TRUE(is_utf8("long enough to be read in words: \xc3\xa9"));
  EXPECT_FALSE(is_utf8("long enough to be read in words: \xc3"));
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text{static_cast<char>(first), static_cast<char>(second), 'a'};
      EXPECT_TRUE(is_utf8(replace_invalid(text))) << first << " " << second;
      EXPECT_EQ(is_utf8(text), replace_invalid(text) == text) << first << " " << second;
    }
  }
}

TEST(Utf8, CountsInvalidBytes) {
  const auto counted = [](std::string_view text) {
    const InvalidBytes found = invalid_bytes(text);
    return std::pair(found.count, found.first);
  };
  EXPECT_EQ(counted("long enough to be read in words: \xc3\xa9"), std::pair(int64_t{0}, int64_t{0}));
  EXPECT_EQ(counted("\xff"), std::pair(int64_t{1}, int64_t{0}));
  EXPECT_EQ(counted("\xc3\xa9 \xf0\x9f\x98! \xc3"), std::pair(int64_t{4}, int64_t{3}));
}

TEST(Utf8, StreamReturnsCompleteCharactersOnly) {
  const std::string text = "a\xf0\x9f\x98\x80\xe2\x82 b\xff\xc3";
  Utf8Stream stream;
  std::string all;
  for (const char byte : text) {
    const std::string part = stream.push({&byte, 1});
    EXPECT_TRUE(is_utf8(part));
    all += part;
  }
  EXPECT_TRUE(all.ends_with(kR)) << "only the last byte may still become a character";
  EXPECT_EQ(all + stream.finish(), replace_invalid(text));
}

TEST(Utf8, CharactersAndWhiteSpace) {
  EXPECT_EQ(code_point("\xf0\x9f\x98\x80", 0), U'\U0001F600');
  EXPECT_EQ(code_point("a\xe2\x96\x81", 1), U'\u2581');
  EXPECT_EQ(character_before("a\xe2\x96\x81", 4), 1u);
  EXPECT_TRUE(is_white_space(U'\u3000'));
  EXPECT_FALSE(is_white_space(U'\u180e'));
}

}  // namespace
}  // namespace shardwise::text::utf8_test
