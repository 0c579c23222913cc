// Files next to a tokenizer.model, and streaming. tests/python/tokenizers_test.py compares the ids with
// transformers.
#include "shardwise/text/sentencepiece_tokenizer.h"

#include <gtest/gtest.h>
#include <sentencepiece_trainer.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::text::sentencepiece_tokenizer_test {
namespace {

using test::contains, test::error_text;
using Ids = std::vector<int64_t>;

/// Returns a model with byte pieces, controls <unk> <s> </s> and a few pieces, trained with `flags`.
std::string trained(const std::string& flags) {
  const test::TemporaryDirectory directory;
  std::string text;
  for (int i = 0; i < 200; ++i) text += "some words and  other words " + std::to_string(i) + "\n";
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      "--input=" + directory.put("text", text) + " --model_prefix=" + directory / "model" +
      " --vocab_size=330 --model_type=bpe --byte_fallback=true --hard_vocab_limit=false --minloglevel=2 " +
      flags);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return test::contents(directory / "model.model");
}

const std::string& model() {
  static const std::string plain = trained("");
  return plain;
}

class SentencePieceTokenizers : public ::testing::Test {
 protected:
  SentencePieceTokenizers() { directory_.put("tokenizer.model", model()); }
  std::unique_ptr<Tokenizer> load() const { return load_tokenizer(directory_.path()); }
  void expect_error(const std::vector<std::string>& parts) const {
    const std::string error = error_text([&] { load(); });
    for (const std::string& part : parts) EXPECT_PRED2(contains, error, part);
  }

  test::TemporaryDirectory directory_;
};

TEST_F(SentencePieceTokenizers, ConfigAddsBosAndEos) {
  const Ids words = load()->encode("words");
  directory_.put("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<s>"})");
  Ids expected = words;
  expected.insert(expected.begin(), 1);
  EXPECT_EQ(load()->encode("words"), expected);
  directory_.put("tokenizer_config.json",
                 R"({"add_bos_token": true, "add_eos_token": true, "eos_token": {"content": "</s>"},
                  "pad_token": "<unk>"})");
  expected.push_back(2);
  EXPECT_EQ(load()->encode("words"), expected);
  Ids without;
  load()->encode("words", SpecialTokens::without, without);
  EXPECT_EQ(without, words);
  EXPECT_EQ(load()->special_ids().pad, 0);
}

// bos_token defines the token but does not add it, as in transformers 5.
TEST_F(SentencePieceTokenizers, AddNothingByDefault) {
  const Ids words = load()->encode("words");
  EXPECT_NE(words.at(0), 1);
  for (const char* config :
       {R"({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"})",
        R"({"add_bos_token": false})", R"({"add_bos_token": null})"}) {
    directory_.put("tokenizer_config.json", config);
    EXPECT_EQ(load()->encode("words"), words) << config;
  }
}

TEST_F(SentencePieceTokenizers, RejectInvalidConfigs) {
  directory_.put("tokenizer_config.json", R"({"add_bos_token": 1})");
  expect_error({"tokenizer_config.json: add_bos_token", "true or false"});
  directory_.put("tokenizer_config.json", R"({"bos_token": "<other>"})");
  expect_error({"tokenizer_config.json: bos_token must be a token of the vocabulary", "<other>"});
  directory_.put("tokenizer.model", trained("--bos_id=-1"));
  directory_.put("tokenizer_config.json", R"({"add_bos_token": true})");
  expect_error({"add_bos_token must be false if bos_token is missing"});
}

TEST_F(SentencePieceTokenizers, RejectAddedTokens) {
  directory_.put("tokenizer_config.json",
                 R"({"added_tokens_decoder": {"1": {"content": "<s>"}, "2": "</s>"}})");
  directory_.put("added_tokens.json", R"({"</s>": 2})");
  EXPECT_GT(load()->vocab_size(), 259);
  directory_.put("added_tokens.json", R"({"</s>": 2, "<pad>": 330})");
  expect_error({R"(added_tokens.json: "<pad>" must be a token of the model with its id)"});
  directory_.put("added_tokens.json", R"({"</s>": 3})");
  expect_error({R"(added_tokens.json: "</s>" must be a token of the model)"});
  directory_.put("added_tokens.json", "{}");
  directory_.put("tokenizer_config.json", R"({"added_tokens_decoder": {"330": {"content": "<pad>"}}})");
  expect_error({"tokenizer_config.json: added_tokens_decoder.330 must be a token of the model", "<pad>"});
  directory_.put("tokenizer_config.json", R"({"added_tokens_decoder": {"1": {"content": "</s>"}}})");
  expect_error({"added_tokens_decoder.1", "</s>"});
  directory_.put("tokenizer_config.json", R"({"added_tokens_decoder": {"1": 5}})");
  expect_error({"added_tokens_decoder.1 must be a string or an AddedToken; got 5"});
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids) {
  const auto stream = tokenizer.stream(SpecialTokens::with);
  std::string text;
  for (const int64_t id : ids) text += stream->push(id);
  return text + stream->finish();
}

TEST_F(SentencePieceTokenizers, StreamingMatchesDecodingAll) {
  std::mt19937 draw(1);
  for (const char* flags :
       {"", "--remove_extra_whitespaces=false", "--add_dummy_prefix=false",
        "--add_dummy_prefix=false --remove_extra_whitespaces=false", "--treat_whitespace_as_suffix=true"}) {
    directory_.put("tokenizer.model", trained(flags));
    const auto tokenizer = load();
    const int64_t space = *tokenizer->id_of("\u2581"), last = tokenizer->vocab_size() - 1;
    // Ranges of ids: controls, bytes, three bytes of one character, the space piece, any other pieces.
    const std::vector<std::pair<int64_t, int64_t>> kinds{
        {0, 2},         {3, 258},    {3 + 0xe2, 3 + 0xe2}, {3 + 0x82, 3 + 0x82}, {3 + 0xac, 3 + 0xac},
        {space, space}, {259, last}, {259, last}};
    for (int i = 0; i < 20000; ++i) {
      Ids ids(1 + draw() % 8);
      for (int64_t& id : ids) {
        const auto [least, most] = kinds[draw() % kinds.size()];
        id = least + draw() % (most - least + 1);
      }
      ASSERT_EQ(streamed(*tokenizer, ids), tokenizer->decode(ids)) << flags << ::testing::PrintToString(ids);
    }
  }
}

TEST_F(SentencePieceTokenizers, LongStreamsWithoutTextAreFast) {
  constexpr int64_t kMany = 500000;
  const auto tokenizer = load();
  const int64_t space = *tokenizer->id_of("\u2581");
  for (const int64_t id : {int64_t{2}, space}) {
    const auto stream = tokenizer->stream(SpecialTokens::with);
    std::string text;
    for (int64_t i = 0; i < kMany; ++i) text += stream->push(id);
    EXPECT_EQ(text, "");  // leading spaces are dropped
  }
}

}  // namespace
}  // namespace shardwise::text::sentencepiece_tokenizer_test
