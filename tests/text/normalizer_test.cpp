#include "shardwise/text/normalizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace shardwise::text::normalizer_test {
namespace {

using nlohmann::json;

std::string normalized(const char* form, std::string text) {
  const json file = {{"type", form}};
  Normalizer(JsonPart{file, "normalizer."}).apply_(text, GrowthLimit(text.size()));
  return text;
}

// UAX #15 and the Hangul composition of Unicode 3.12: L + V, LV + T with T from U+11A8 to U+11C2.
TEST(Normalizer, ComposesHangul) {
  EXPECT_EQ(normalized("NFC", "\u110b\u116f"), "\uc6cc");
  EXPECT_EQ(normalized("NFC", "\uc6cc\u11a8"), "\uc6cd");
  EXPECT_EQ(normalized("NFC", "\uc6cc\u11c2"), "\uc6e7");
  EXPECT_EQ(normalized("NFC", "\uc6cc\u11c3"), "\uc6cc\u11c3");
  EXPECT_EQ(normalized("NFD", "\uc6cd"), "\u110b\u116f\u11a8");
}

// U+11A7 precedes the final consonants and is none.
TEST(Normalizer, KeepsTheVowelBeforeTheFinalConsonants) {
  for (const char* form : {"NFC", "NFKC"}) {
    EXPECT_EQ(normalized(form, "\uc6cc\u11a7"), "\uc6cc\u11a7") << form;
    EXPECT_EQ(normalized(form, "\u110b\u116f\u11a7\u11a7\u11a8e\u0301"), "\uc6cc\u11a7\u11a7\u11a8\u00e9")
        << form;
  }
  for (const char* form : {"NFD", "NFKD"})
    EXPECT_EQ(normalized(form, "\uc6cc\u11a7\u00e9"), "\u110b\u116f\u11a7e\u0301") << form;
}

}  // namespace
}  // namespace shardwise::text::normalizer_test
