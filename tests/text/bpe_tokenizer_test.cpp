// Supported and unsupported features of tokenizer.json, and properties that need no reference implementation.
// tests/python/tokenizers_test.py compares the ids with transformers.
#include "shardwise/text/bpe_tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shardwise/text/byte_level.h"
#include "shardwise/text/utf8.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::text::bpe_tokenizer_test {
namespace {

using nlohmann::json;
using test::contains, test::error_text;
using Ids = std::vector<int64_t>;

/// Returns a byte-level tokenizer: ids 0 to 255 are the bytes, then one id per merge.
json byte_level(const std::vector<std::pair<std::string, std::string>>& merged_pairs) {
  json vocab = json::object(), merges = json::array();
  for (int byte = 0; byte < 256; ++byte) vocab[byte_characters()[byte]] = byte;
  for (const auto& [left, right] : merged_pairs) {
    vocab[left + right] = vocab.size();
    merges.push_back({left, right});
  }
  return {
      {"version", "1.0"},
      {"added_tokens",
       json::array({{{"id", vocab.size()}, {"content", "<end>"}, {"special", true}, {"normalized", false}}})},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

class BpeTokenizers : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> load(const json& file) {
    directory_.put("tokenizer.json", file.dump());
    return load_tokenizer(directory_.path());
  }
  /// Checks that `file` with `value` at `pointer` gives a one-line error that contains all `parts`.
  void expect_error(json file, const char* pointer, const json& value,
                    const std::vector<std::string>& parts) {
    file[json::json_pointer(pointer)] = value;
    const std::string error = error_text([&] { load(file); });
    EXPECT_PRED2(contains, error, "tokenizer.json: ");
    EXPECT_EQ(error.find('\n'), std::string::npos);
    for (const std::string& part : parts) EXPECT_PRED2(contains, error, part);
  }

  test::TemporaryDirectory directory_;
};

TEST_F(BpeTokenizers, MergesByRankThenLeftmost) {
  const auto tokenizer = load(byte_level({{"a", "a"}, {"b", "c"}, {"aa", "b"}}));
  EXPECT_EQ(tokenizer->encode("aaa"), (Ids{256, 'a'}));
  EXPECT_EQ(tokenizer->encode("aabc"), (Ids{256, 257}));  // bc has a lower rank than aab
  EXPECT_EQ(tokenizer->encode("aabb"), (Ids{258, 'b'}));
  EXPECT_EQ(tokenizer->vocab_size(), 260);
  EXPECT_EQ(tokenizer->id_of("<end>"), 259);
}

TEST_F(BpeTokenizers, LongWordsMergeAsShortWords) {
  // Long words use the heap, short ones scanning. Splitting a word where nothing merges gives the same ids.
  const auto tokenizer = load(byte_level({{"a", "b"}, {"ab", "a"}, {"a", "a"}, {"aba", "ab"}, {"b", "b"}}));
  const std::string part = "abaababbaabaaaabbbabz";
  Ids expected;
  for (int i = 0; i < 50; ++i) tokenizer->encode(part, SpecialTokens::with, expected);
  std::string word;
  for (int i = 0; i < 50; ++i) word += part;
  EXPECT_EQ(tokenizer->encode(word), expected);
}

TEST_F(BpeTokenizers, RoundTripsEveryText) {
  const auto tokenizer = load(byte_level({{"a", "b"}}));
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>(i * 7919 >> 3);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), replace_invalid(text));
  EXPECT_EQ(tokenizer->encode("\xff"), tokenizer->encode(kReplacement));
}

TEST_F(BpeTokenizers, StreamsCompleteCharacters) {
  const auto tokenizer = load(byte_level({}));
  const auto stream = tokenizer->stream(SpecialTokens::with);
  for (const int64_t byte : {0xf0, 0x9f, 0x98}) EXPECT_EQ(stream->push(byte), "");
  EXPECT_EQ(stream->push(0x80), "\xf0\x9f\x98\x80");
  EXPECT_EQ(stream->push(0xc3), "");
  EXPECT_EQ(stream->finish(), kReplacement);
}

TEST_F(BpeTokenizers, EncodesDecodesAndSkipsSpecialTokens) {
  const auto tokenizer = load(byte_level({}));
  EXPECT_EQ(tokenizer->encode("a<end>b"), (Ids{'a', 256, 'b'}));
  EXPECT_EQ(tokenizer->decode({'a', 256}), "a<end>");
  EXPECT_EQ(tokenizer->decode({'a', 256}, SpecialTokens::without), "a");
}

TEST_F(BpeTokenizers, ConfigDefinesSpecialIds) {
  const json file = byte_level({});
  directory_.put("tokenizer_config.json",
                 R"({"eos_token": "<end>", "bos_token": {"content": "a"}, "pad_token": null})");
  const SpecialIds ids = load(file)->special_ids();
  EXPECT_EQ(ids.eos, 256);
  EXPECT_EQ(ids.bos, 'a');
  EXPECT_FALSE(ids.pad || ids.unk);
  directory_.put("tokenizer_config.json", R"({"eos_token": "<other>"})");
  EXPECT_PRED2(contains, error_text([&] { load(file); }), "eos_token must be a token of the vocabulary");
  directory_.put("tokenizer_config.json", R"({"eos_token": 5})");
  EXPECT_PRED2(contains, error_text([&] { load(file); }),
               "eos_token must be a string or an AddedToken; got 5");
  directory_.put("tokenizer_config.json", "[]");
  EXPECT_PRED2(contains, error_text([&] { load(file); }),
               "tokenizer_config.json: must be a JSON object; got []");
}

TEST_F(BpeTokenizers, OnlyThePostProcessorAddsTokens) {
  directory_.put("tokenizer_config.json",
                 R"({"bos_token": "<end>", "add_bos_token": true, "add_eos_token": true})");
  EXPECT_EQ(load(byte_level({}))->encode("a"), Ids{'a'});
}

TEST_F(BpeTokenizers, RejectsUnsupportedFeatures) {
  const json file = byte_level({{"a", "b"}});
  expect_error(file, "/version", "2.0", {"version", "2.0"});
  expect_error(file, "/truncation", {{"max_length", 5}}, {"truncation must be null", "max_length"});
  expect_error(file, "/padding", {{"strategy", "Fixed"}}, {"padding", "Fixed"});
  expect_error(file, "/something", 1, {"something", "omitted"});
  expect_error(file, "/model/type", "Unigram", {"model.type must be BPE", "Unigram"});
  expect_error(file, "/model/dropout", 0.1, {"model.dropout", "0.1"});
  expect_error(file, "/model/end_of_word_suffix", "</w>", {"model.end_of_word_suffix", "</w>"});
  expect_error(file, "/model/new_option", true, {"model.\"new_option\"", "true"});
  expect_error(file, "/normalizer", {{"type", "BertNormalizer"}}, {"normalizer.type", "BertNormalizer"});
  expect_error(file, "/pre_tokenizer/type", "Whitespace", {"pre_tokenizer.type", "Whitespace"});
  expect_error(file, "/decoder/type", "WordPiece", {"decoder.type", "WordPiece"});
  expect_error(file, "/decoder", nullptr, {"decoder must be given"});
  expect_error(file, "/post_processor", {{"type", "BertProcessing"}},
               {"post_processor.type", "BertProcessing"});
  expect_error(file, "/pre_tokenizer",
               {{"type", "Sequence"}, {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}},
               {"pretokenizers[1].type", "omitted after ByteLevel"});
}

TEST_F(BpeTokenizers, RejectsInconsistentModels) {
  const json file = byte_level({{"a", "b"}});
  expect_error(file, "/model/merges/0", {"a", "q!"}, {"model.merges[0]", "q!"});
  expect_error(file, "/model/merges/0", "a b c", {"model.merges[0]", "a b c"});
  expect_error(file, "/model/vocab/ab", 5, {"a unique id"});
  expect_error(file, "/model/vocab/ab", -5, {"an integer from 0 to 2^24 - 1", "-5"});
  expect_error(file, "/model/vocab/ab", 1u << 24, {"2^24"});
  expect_error(file, "/model/unk_token", "nothing", {"model.unk_token", "nothing"});
  expect_error(file, "/added_tokens/0/id", 7, {"added_tokens[0].id", "7"});
  expect_error(file, "/added_tokens/0/content", "", {"added_tokens[0].content"});
  expect_error(file, "/added_tokens/0/content", "ab",
               {"added_tokens[0].id must be the id in the vocabulary; got 257"});
  json without = file;
  without["model"]["vocab"].erase("A");
  EXPECT_PRED2(contains, error_text([&] { load(without); }),
               "must have a token for every byte; got none for 65");
  without = file;
  without.erase("pre_tokenizer");
  EXPECT_PRED2(contains, error_text([&] { load(without); }), "unk_token must be given if byte_fallback");
}

TEST_F(BpeTokenizers, RejectsTemplatesWithUnknownIds) {
  json file = byte_level({});
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {65}}, {"tokens", {"<s>"}}}}}}};
  EXPECT_EQ(load(file)->encode("b"), (Ids{'A', 'b'}));
  const char* id = "/post_processor/special_tokens/<s>/ids/0";
  expect_error(file, id, 257, {"post_processor must be a template whose ids are in the vocabulary", "257"});
  expect_error(file, id, 70000, {"post_processor", "70000"});
  expect_error(file, id, -5, {"special_tokens.<s>.ids must be an integer from 0 to 2^24 - 1", "-5"});
}

TEST_F(BpeTokenizers, RejectsUnknownBehaviorsAndOrders) {
  const json file = byte_level({});
  expect_error(file, "/pre_tokenizer",
               {{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "Sideways"}},
               {"pre_tokenizer.behavior must be Isolated, Removed", "Sideways"});
  expect_error(file, "/decoder",
               {{"type", "Sequence"}, {"decoders", {{{"type", "ByteLevel"}}, {{"type", "Fuse"}}}}},
               {"decoder.decoders[1].type must be omitted at this position", "Fuse"});
}

TEST_F(BpeTokenizers, RejectsWhatTheReferenceRejects) {
  const json file = byte_level({});
  const json metaspace{{"type", "Metaspace"}, {"replacement", "_"}};
  const auto with = [](json object, const json& more) {
    object.update(more);
    return object;
  };
  for (const char* pointer : {"/pre_tokenizer", "/decoder"}) {
    expect_error(file, pointer, with(metaspace, {{"prepend_scheme", "bogus"}}), {"prepend_scheme", "bogus"});
    expect_error(file, pointer, with(metaspace, {{"add_prefix_space", false}, {"prepend_scheme", "always"}}),
                 {"prepend_scheme must be never", "always"});
    expect_error(file, pointer, with(metaspace, {{"add_prefix_space", false}}), {"prepend_scheme", "always"});
    expect_error(file, pointer, with(metaspace, {{"replacement", "__"}}), {"one character", "__"});
  }
  const json replace{{"type", "Replace"}, {"content", ""}, {"pattern", {{"String", "a"}, {"Regex", "b"}}}};
  expect_error(file, "/normalizer", replace, {"normalizer.pattern must be a String or a Regex"});
  expect_error(file, "/decoder", replace, {"decoder.pattern must be a String or a Regex"});
}

TEST_F(BpeTokenizers, RejectsLongAddedTokens) {
  json file = byte_level({});
  const auto content = [](size_t i, size_t size) {
    std::string text = std::to_string(i);
    return text.insert(0, size - text.size(), '-');
  };
  const char* first = "/added_tokens/0/content";
  const std::string rule = "added_tokens[0].content must have at most 1024 bytes";
  file["added_tokens"][0]["content"] = content(1, 1024);
  EXPECT_EQ(load(file)->encode("a" + content(1, 1024)), (Ids{'a', 256}));
  expect_error(file, first, content(1, 1025), {rule + ", and all added tokens at most 4194304; got 1025"});
  file["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(100, 'b')}};
  file["added_tokens"][0]["normalized"] = true;
  expect_error(file, first, std::string(11, 'a'), {rule, "got 1100"});
  file = byte_level({});
  for (size_t i = 0; i < 4096; ++i)
    file["added_tokens"][i] = {{"id", 256 + i}, {"content", content(i, 1024)}, {"normalized", false}};
  file["added_tokens"][0]["normalized"] = true;
  EXPECT_EQ(load(file)->vocab_size(), 256 + 4096);
  file["added_tokens"].push_back({{"id", 256 + 4096}, {"content", "xy"}, {"normalized", false}});
  EXPECT_PRED2(contains, error_text([&] { load(file); }), "added_tokens[4096].content must have at most");
}

// O(n log n) at worst; a quadratic algorithm would take hours.
TEST_F(BpeTokenizers, LongRunsOfMarksAndWhitespaceAreFast) {
  constexpr int kMany = 500000;
  json file = byte_level({});
  file["normalizer"] = {{"type", "NFC"}};
  for (const char* side : {"lstrip", "rstrip"}) {
    file["added_tokens"].push_back({{"id", file["added_tokens"].size() + 256},
                                    {"content", std::string(1, "\t\v"[side[0] == 'r'])},
                                    {side, true},
                                    {"normalized", false}});
  }
  const auto tokenizer = load(file);
  std::string marks = "a", above, below;
  for (int i = 0; i < kMany; ++i) {
    marks += "\u0301\u0323";
    above += "\u0301";
    if (i > 0) below += "\u0323";
  }
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(marks)), "\u1ea1" + below + above);
  EXPECT_EQ(tokenizer->encode(std::string(kMany, '\t')), Ids(kMany, 257));
  EXPECT_EQ(tokenizer->encode(std::string(kMany, '\v')), Ids(kMany, 258));
}

TEST_F(BpeTokenizers, RejectsUnknownIds) {
  const auto tokenizer = load(byte_level({}));
  for (const int64_t id : {-1, 257}) {
    EXPECT_PRED2(contains, error_text([&] { tokenizer->decode({id}); }), "got " + std::to_string(id));
  }
}

TEST_F(BpeTokenizers, RejectsInvalidNames) {
  EXPECT_PRED2(contains, error_text([&] { load_tokenizer(directory_.path()); }), "got neither");
  EXPECT_PRED2(contains, error_text([] { load_tokenizer("words"); }), "got words");
  directory_.put("tokenizer.model", "no model");
  EXPECT_PRED2(contains, error_text([&] { load_tokenizer(directory_.path()); }),
               "must be a SentencePiece model");
  directory_.put("tokenizer.json", "{");
  EXPECT_PRED2(contains, error_text([&] { load_tokenizer(directory_.path()); }), "must be JSON");
}

}  // namespace
}  // namespace shardwise::text::bpe_tokenizer_test
