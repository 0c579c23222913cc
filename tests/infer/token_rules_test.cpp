// The rules by themselves; tests/python/generation_test.py compares generated tokens with transformers.
#include "shardwise/infer/token_rules.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/error_text.h"

namespace shardwise::infer::token_rules_test {
namespace {

using test::contains, test::error_text;
using Ids = std::vector<int64_t>;

struct Case {
  Ids tokens = {7, 8};
  int64_t prompt = 2, max_new = 5;
};

TokenChoice choice(const TokenRules& rules, const Case& c) {
  static const Ids eos{1, 2};
  return choice_of(rules, {c.tokens, c.prompt, c.max_new, eos});
}

std::set<int64_t> forbidden(const TokenRules& rules, const Case& c = {}) {
  const TokenChoice chosen = choice(rules, c);
  EXPECT_TRUE(chosen.forced.empty());
  return {chosen.forbidden.begin(), chosen.forbidden.end()};
}

using Set = std::set<int64_t>;

TEST(TokenRules, PermitEverythingByDefault) {
  EXPECT_EQ(forbidden({}), Set());
}

TEST(TokenRules, SuppressTokens) {
  const TokenRules rules{.suppress_tokens = {3}, .begin_suppress_tokens = {4, 5}};
  EXPECT_EQ(forbidden(rules), (Set{3, 4, 5}));
  EXPECT_EQ(forbidden(rules, {.tokens = {7, 8, 9}}), Set{3});
}

TEST(TokenRules, RepeatNoSequence) {
  const auto after = [](const Ids& tokens, int64_t size) {
    return forbidden({.no_repeat_ngram_size = size}, {.tokens = tokens, .prompt = 1});
  };
  EXPECT_EQ(after({3, 4, 3}, 2), Set{4});
  EXPECT_EQ(after({3, 4, 3, 5, 3}, 2), (Set{4, 5}));
  EXPECT_EQ(after({3, 3}, 2), Set{3});
  EXPECT_EQ(after({3, 4}, 2), Set());
  EXPECT_EQ(after({3, 4, 5, 9, 3, 4}, 3), Set{5});
  EXPECT_EQ(after({3, 4, 5, 9, 4, 4}, 3), Set());
  EXPECT_EQ(after({3, 4}, 1), (Set{3, 4}));
  EXPECT_EQ(after({3}, 4), Set());
}

TEST(TokenRules, CompleteNoBadWord) {
  const TokenRules rules{.bad_words_ids = {{5}, {8, 6}, {7, 8, 9}, {6, 8, 3}, {1}, {8, 2}, {1, 7, 8, 4}}};
  // {1} is an EOS token alone. Transformers does not apply a sequence that is longer than the text, {7, 8, 9}
  // here.
  EXPECT_EQ(forbidden(rules), (Set{5, 6, 2}));
  EXPECT_EQ(forbidden(rules, {.tokens = {0, 7, 8}}), (Set{5, 6, 9, 2}));
  EXPECT_EQ(forbidden(rules, {.tokens = {6}, .prompt = 1}), Set{5});
}

TEST(TokenRules, DelayEos) {
  const TokenRules new_tokens{.min_new_tokens = 2}, length{.min_length = 4};
  for (const TokenRules& rules : {new_tokens, length}) {
    EXPECT_EQ(forbidden(rules), (Set{1, 2}));
    EXPECT_EQ(forbidden(rules, {.tokens = {7, 8, 9}}), (Set{1, 2}));
    EXPECT_EQ(forbidden(rules, {.tokens = {7, 8, 9, 9}}), Set());
  }
  EXPECT_EQ(forbidden(length, {.tokens = {7, 8, 7, 8}, .prompt = 4}), Set());
}

TEST(TokenRules, ForceTheLastToken) {
  const TokenRules rules{.suppress_tokens = {3}, .min_new_tokens = 9, .forced_eos_token_id = {1, 4}};
  EXPECT_EQ(forbidden(rules), (Set{1, 2, 3}));
  const TokenChoice last = choice(rules, {.tokens = {7, 8, 9}, .max_new = 2});
  EXPECT_EQ(last.forced, (Ids{1, 4}));
  EXPECT_EQ(last.forbidden, Ids{3});
}

TEST(TokenRules, AreChecked) {
  const auto error = [](const TokenRules& rules) {
    return error_text([&] { check_token_rules(rules, /*vocab=*/10, "file"); });
  };
  EXPECT_PRED2(contains, error({.suppress_tokens = {10}}),
               "file: suppress_tokens must have token ids from 0 to below");
  EXPECT_PRED2(contains, error({.begin_suppress_tokens = {-1}}), "begin_suppress_tokens");
  EXPECT_PRED2(contains, error({.forced_eos_token_id = {10}}), "forced_eos_token_id");
  EXPECT_PRED2(contains, error({.bad_words_ids = {{1}, {}}}),
               "bad_words_ids must have sequences of at least one");
  EXPECT_PRED2(contains, error({.bad_words_ids = {{1, 99}}}), "got 99");
  EXPECT_PRED2(contains, error({.no_repeat_ngram_size = -1}),
               "no_repeat_ngram_size must be 0 or more; got -1");
  EXPECT_PRED2(contains, error({.min_length = -1}), "min_length");
  check_token_rules({.suppress_tokens = {9}}, 10, "file");
}

}  // namespace
}  // namespace shardwise::infer::token_rules_test
