#include "shardwise/text/regex.h"

#include <gtest/gtest.h>

#include "tests/support/error_text.h"

namespace shardwise::text::regex_test {
namespace {

using test::contains, test::error_text;

using Matcher = Regex::Matcher;

std::vector<std::string> matches(const std::string& pattern, const std::string& text,
                                 Matcher matcher = Matcher::machine_code_if_possible) {
  const Regex regex(pattern, "test", matcher);
  std::vector<std::string> found;
  size_t at = 0;
  while (const auto match = regex.find(text, at)) {
    found.push_back(text.substr(match->begin, match->end - match->begin));
    at = match->end;
  }
  return found;
}

TEST(Regex, MatchesCharactersNotBytes) {
  EXPECT_EQ(matches(R"(\p{L}+| ?\p{N}{1,3})", "\xc3\xa9t\xc3\xa9 1234"),
            (std::vector<std::string>{"\xc3\xa9t\xc3\xa9", " 123", "4"}));
  EXPECT_EQ(matches(R"((?i:'s|'ll))", "it'S we'll"), (std::vector<std::string>{"'S", "'ll"}));
}

TEST(Regex, SpaceClassIsUnicodeWhiteSpace) {
  // U+180E is white space in PCRE2 only, U+0085 in both.
  EXPECT_EQ(matches(R"(\s)", "\xe1\xa0\x8e\xc2\x85"), (std::vector<std::string>{"\xc2\x85"}));
  EXPECT_EQ(matches(R"([-\s])", "a- "), (std::vector<std::string>{"-", " "}));
  EXPECT_EQ(matches(R"([^\s]+)", "\xe1\xa0\x8e\xc2\x85"), (std::vector<std::string>{"\xe1\xa0\x8e"}));
  EXPECT_EQ(matches(R"(\s+(?!\S))", "a   b"), (std::vector<std::string>{"  "}));
}

TEST(Regex, LongRunsDoNotOverflowTheStack) {
  const std::string text(1000000, 'a');
  EXPECT_EQ(matches(R"((?:a|b)+)", text), (std::vector<std::string>{text}));
}

TEST(Regex, BacktrackingIsLimited) {
  const std::string text = std::string(60, 'a') + "!b";  // without b no match would be tried
  for (const char* pattern : {"(?:a|aa)+b", "(?:a+)+b", "(?:(?:a|b?a)+)+b"})
    EXPECT_PRED2(contains, error_text([&] { matches(pattern, text); }), "within PCRE2's match limit")
        << pattern;
}

TEST(Regex, BacktrackingOfTheInterpreterIsLimited) {
  const std::string text = std::string(60, 'a') + "!b";
  EXPECT_PRED2(contains, error_text([&] { matches("(?:a+)+b", text, Matcher::interpreter); }),
               "within PCRE2's match limit; got match limit exceeded");
}

// Each repeat of a group is a state to come back to.
TEST(Regex, MemoryOfTheInterpreterIsLimited) {
  const std::string pattern = "(?:a|b)+", run(1'000, 'a'), long_run(1'000'000, 'a');
  EXPECT_EQ(matches(pattern, run, Matcher::interpreter), std::vector<std::string>{run});
  EXPECT_PRED2(contains, error_text([&] { matches(pattern, long_run, Matcher::interpreter); }),
               "within PCRE2's match limit; got heap limit exceeded");
}

// Machine code needs less for each, and has its own stack.
TEST(Regex, MemoryIsLimited) {
  const std::string error = error_text([] { matches("(?:a|b)+", std::string(4'000'000, 'a')); });
  EXPECT_PRED2(contains, error, "within PCRE2's match limit; got ");
  EXPECT_TRUE(contains(error, "JIT stack limit") || contains(error, "heap limit")) << error;
}

TEST(Regex, ScriptsExcludeScriptExtensions) {
  // U+3001 has several Script_Extensions, which PCRE2 matches by default.
  EXPECT_EQ(matches(R"([\p{Han}]+)", "\u4e00\u3001\u4e00"), (std::vector<std::string>{"\u4e00", "\u4e00"}));
  EXPECT_EQ(matches(R"(\P{Han})", "\u4e00\u3001"), (std::vector<std::string>{"\u3001"}));
  EXPECT_EQ(matches(R"([\p{Lu}\p{Alphabetic}-]+)", "-A\u24d0."), (std::vector<std::string>{"-A\u24d0"}));
}

TEST(Regex, WordClassIncludesAlphabetic) {
  for (const char* word : {"a_\u2177b", "a\u24d0b", "e\u0301"}) {
    EXPECT_EQ(matches(R"(\w+)", word), (std::vector<std::string>{word}));
    EXPECT_TRUE(matches(R"(\W)", word).empty()) << word;
  }
  EXPECT_EQ(matches(R"(\w)", "\u00b2\u00bd\u2460"), (std::vector<std::string>{"\u00b2", "\u00bd"}));
  EXPECT_TRUE(matches(R"([\w])", "\u00b2\u00bd\u2460").empty());
}

TEST(Regex, TranslatesRepeatsAndCodePoints) {
  EXPECT_EQ(matches("a{1,2}?b?", "aab"), (std::vector<std::string>{"a", "ab"}));
  EXPECT_EQ(matches("a{2,}?", "aaa"), (std::vector<std::string>{"aa"}));
  EXPECT_EQ(matches(R"(\u00E9[\u4e00-\u4e02])", "\u00e9\u4e01"), (std::vector<std::string>{"\u00e9\u4e01"}));
  EXPECT_EQ(matches("[(*]+a}?", "(*a}"), (std::vector<std::string>{"(*a}"}));
}

TEST(Regex, RejectsFoldingToSeveralCharacters) {
  for (const char* pattern :
       {"(?i:ss)", "(?i:'ST)", "(?i:ff)", "(?i:fi)", "(?i:a|fl)", "(?i:s(?:t))", "(?i:(s)s)", "(?i:s{2})",
        "(?i:(?:a|b)(?=ss))", "(?i:\u00df)", "(?i:[a\u0149])", R"((?i:\x{df}))", R"((?i:\u00df))",
        R"((?i:\p{Ll}))", R"((?i:[\w]))", R"((?i:\S))", "(?i:[^a])"}) {
    EXPECT_PRED2(contains, error_text([&] { Regex(pattern, "file: pattern"); }),
                 "file: pattern must use only characters")
        << pattern;
  }
  EXPECT_EQ(matches(R"((?i:'(?:[sdmt]|ll|ve|re))|ss|\u00df)", "'S ss SS \u00df 'LL"),
            (std::vector<std::string>{"'S", "ss", "\u00df", "'LL"}));
}

TEST(Regex, RejectsSyntaxWithAnotherMeaningInOniguruma) {
  for (const char* pattern : {"^a",
                              "a$",
                              R"(\bword)",
                              R"(\h)",
                              "[a[b]]",
                              "[a&&b]",
                              "a{,2}",
                              "a{1,2}+",
                              "(?<n>a)",
                              R"([\S])",
                              R"(\1)",
                              "(?i)a",
                              R"(a\)",
                              R"([\s-\u4e00])",
                              R"([\p{L}-z])",
                              R"([\x{1}-\s])",
                              R"([a-\p{L}])",
                              R"(\p{^L})",
                              R"(\p{L)",
                              R"(\p{N}{2}?)",
                              "a{12}?",
                              "(?:ab){0}?",
                              "(*ACCEPT)a",
                              "a(*COMMIT)b",
                              "(*LIMIT_MATCH=1)a",
                              "(?:a(*SKIP))",
                              R"(\u0}.+)",
                              R"(\u12)",
                              R"([\u00g0])"}) {
    EXPECT_PRED2(contains, error_text([&] { Regex(pattern, "file: pattern"); }),
                 "file: pattern must use only characters")
        << pattern;
  }
  EXPECT_PRED2(contains, error_text([] { Regex("a*", "file: pattern"); }), "must not match the empty string");
  EXPECT_PRED2(contains, error_text([] { Regex("(a", "file: pattern"); }), "must be accepted by PCRE2");
}

}  // namespace
}  // namespace shardwise::text::regex_test
