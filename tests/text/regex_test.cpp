#include "shardwise/text/regex.h"

#include <gtest/gtest.h>

#include "tests/support/error_text.h"

namespace shardwise::text {
namespace {

using test::contains, test::error_text;

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const Regex regex(pattern, "test");
  std::vector<std::string> found;
  size_t at = 0;
  while (const auto match = regex.find(text, at)) {
    found.push_back(text.substr(match->begin, match->end - match->begin));
    at = match->end;
  }
  return found;
}

TEST(Regex, FindsCharactersNotBytes) {
  EXPECT_EQ(matches(R"(\p{L}+| ?\p{N}{1,3})", "\xc3\xa9t\xc3\xa9 1234"),
            (std::vector<std::string>{"\xc3\xa9t\xc3\xa9", " 123", "4"}));
  EXPECT_EQ(matches(R"((?i:'s|'ll))", "it'S we'll"), (std::vector<std::string>{"'S", "'ll"}));
}

TEST(Regex, BlanksAreUnicodesWhiteSpace) {
  // U+180E is a blank to PCRE2 alone, U+0085 to both.
  EXPECT_EQ(matches(R"(\s)", "\xe1\xa0\x8e\xc2\x85"), (std::vector<std::string>{"\xc2\x85"}));
  EXPECT_EQ(matches(R"([^\s]+)", "\xe1\xa0\x8e\xc2\x85"), (std::vector<std::string>{"\xe1\xa0\x8e"}));
  EXPECT_EQ(matches(R"(\s+(?!\S))", "a   b"), (std::vector<std::string>{"  "}));
}

TEST(Regex, LongRunsNeedNoRecursion) {
  const std::string text(1000000, 'a');
  EXPECT_EQ(matches(R"((?:a|b)+)", text), (std::vector<std::string>{text}));
}

TEST(Regex, RefusesWhatOnigurumaReadsDifferently) {
  for (const char* pattern : {"^a", "a$", R"(\bword)", R"(\h)", "[a[b]]", "[a&&b]", "a{,2}", "a{1,2}+",
                              "(?<n>a)", R"([\S])", R"(\1)", "(?i)a", R"(a\)"}) {
    EXPECT_PRED2(contains, error_text([&] { Regex(pattern, "file: pattern"); }),
                 "file: pattern must be a pattern")
        << pattern;
  }
  EXPECT_PRED2(contains, error_text([] { Regex("a*", "file: pattern"); }), "must not match the empty text");
  EXPECT_PRED2(contains, error_text([] { Regex("(a", "file: pattern"); }), "PCRE2 compiles");
}

}  // namespace
}  // namespace shardwise::text
