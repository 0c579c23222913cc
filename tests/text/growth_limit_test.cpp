// Tokenizers whose files would make gigabytes of a few bytes, and the limits that stop them.
#include "shardwise/text/growth_limit.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shardwise/text/byte_fallback.h"
#include "shardwise/text/byte_level.h"
#include "shardwise/text/tokenizer.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::text::growth_limit_test {
namespace {

using nlohmann::json;
using test::contains, test::error_text;

const std::string kRule = "must lengthen a text of ";

TEST(GrowthLimit, IsRelativeToTheInput) {
  GrowthLimit limit(100);
  EXPECT_NO_THROW(limit.check(100 * 32 + 65536));
  EXPECT_PRED2(contains, error_text([&] { limit.check(100 * 32 + 65537); }),
               kRule + "100 bytes to at most 68736; got 68737");
  limit.add_input(1);
  EXPECT_NO_THROW(limit.check(101 * 32 + 65536));
}

TEST(GrowthLimit, AddsUpAllOutput) {
  GrowthLimit limit(100);
  for (int part = 0; part < 2; ++part) limit.add_output(30000);
  EXPECT_NO_THROW(limit.check(8736));
  EXPECT_PRED2(contains, error_text([&] { limit.add_output(8737); }), "got 68737");
}

TEST(GrowthLimit, EndsBelowPositionsOf32Bits) {
  const GrowthLimit limit(Tokenizer::kMaxTextBytes);
  EXPECT_NO_THROW(limit.check((uint64_t{1} << 32) - 4));
  EXPECT_PRED2(contains, error_text([&] { limit.check((uint64_t{1} << 32) - 3); }), "to at most 4294967292;");
}

json replace(const std::string& from, const std::string& to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

/// Returns 40 steps, which make 2^40 times "a" of one.
json doublings() {
  json steps = json::array();
  for (int i = 0; i < 40; ++i) steps.push_back(replace("a", "aa"));
  return steps;
}

class GrowingTokenizers : public ::testing::Test {
 protected:
  GrowingTokenizers() {
    for (int byte = 0; byte < 256; ++byte) file_["model"]["vocab"][byte_characters()[byte]] = byte;
  }
  std::unique_ptr<Tokenizer> load() const {
    directory_.put("tokenizer.json", file_.dump());
    return load_tokenizer(directory_.path());
  }
  void expect_too_long(const Tokenizer& tokenizer, const std::string& text) const {
    EXPECT_PRED2(contains, error_text([&] { tokenizer.encode(text); }), kRule) << text.substr(0, 20);
  }

  test::TemporaryDirectory directory_;
  json file_ = {{"version", "1.0"},
                {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                {"decoder", {{"type", "ByteLevel"}}},
                {"model", {{"type", "BPE"}, {"merges", json::array()}}}};
};

TEST_F(GrowingTokenizers, StopReplacementsOfReplacements) {
  file_["normalizer"] = {{"type", "Sequence"}, {"normalizers", doublings()}};
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->encode("b"), std::vector<int64_t>{'b'});
  expect_too_long(*tokenizer, "a");
  file_["added_tokens"] = json::array({{{"id", 'a'}, {"content", "a"}, {"normalized", true}}});
  EXPECT_PRED2(contains, error_text([&] { load(); }), kRule);
}

TEST_F(GrowingTokenizers, StopOneReplacementAtManyPlaces) {
  file_["normalizer"] = replace("a", std::string(1000, 'b'));
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->encode(std::string(60, 'a')).size(), 60000u);
  expect_too_long(*tokenizer, std::string(1000, 'a'));
}

// Each part between added tokens is short.
TEST_F(GrowingTokenizers, StopReplacementsInManyParts) {
  file_["normalizer"] = replace("a", std::string(1000, 'b'));
  file_["added_tokens"] = json::array({{{"id", 256}, {"content", "<>"}, {"normalized", false}}});
  std::string text;
  for (int part = 0; part < 1000; ++part) text += "a<>";
  expect_too_long(*load(), text);
}

TEST_F(GrowingTokenizers, StopPrefixesOfWords) {
  json steps = json::array({{{"type", "Digits"}, {"individual_digits", true}}});
  for (int i = 0; i < 20; ++i) {
    steps.push_back({{"type", "Metaspace"},
                     {"replacement", i % 2 == 0 ? "\u2581" : "\u2582"},
                     {"prepend_scheme", "always"},
                     {"split", false}});
  }
  steps.push_back(file_["pre_tokenizer"]);
  file_["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->encode("1").size(), 61u);
  expect_too_long(*tokenizer, std::string(10000, '1'));
}

TEST_F(GrowingTokenizers, StopReplacementsOfDecoders) {
  json steps = doublings();
  steps.push_back({{"type", "ByteLevel"}});
  file_["decoder"] = {{"type", "Sequence"}, {"decoders", steps}};
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->decode({'b'}), "b");
  EXPECT_PRED2(contains, error_text([&] { tokenizer->decode({'a'}); }), kRule);
}

// At the end of a run of bytes that are no UTF-8, one token gives a replacement for each of them.
TEST_F(GrowingTokenizers, StopTheDecoderOfARunOfBytes) {
  json& vocab = file_["model"]["vocab"];
  for (int byte = 0; byte < 256; ++byte) vocab[byte_fallback_token(static_cast<uint8_t>(byte))] = 256 + byte;
  file_["decoder"] = {
      {"type", "Sequence"},
      {"decoders",
       {{{"type", "ByteFallback"}}, replace("\ufffd", std::string(1000, 'b')), {{"type", "Fuse"}}}}};
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->decode(std::vector<int64_t>(60, 256 + 0xff)).size(), 60000u);
  EXPECT_PRED2(contains, error_text([&] { tokenizer->decode(std::vector<int64_t>(1000, 256 + 0xff)); }),
               kRule);
}

TEST_F(GrowingTokenizers, StopTheDecoderOfManyTokens) {
  file_["decoder"] = {{"type", "Sequence"},
                      {"decoders", {replace("a", std::string(1000, 'b')), {{"type", "ByteLevel"}}}}};
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->decode(std::vector<int64_t>(60, 'a')).size(), 60000u);
  EXPECT_PRED2(contains, error_text([&] { tokenizer->decode(std::vector<int64_t>(1000, 'a')); }), kRule);
}

}  // namespace
}  // namespace shardwise::text::growth_limit_test
