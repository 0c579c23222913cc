// Fields of generation_config.json and transformers' defaults for missing ones.
#include "shardwise/infer/generation_config.h"

#include <gtest/gtest.h>

#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::infer::generation_config_test {
namespace {

Sampling read(const std::string& text) {
  const test::TemporaryDirectory directory;
  directory.put("generation_config.json", text);
  return read_generation_config(directory.path()).sampling;
}

TEST(GenerationConfigs, AreGreedyWithoutDoSample) {
  const test::TemporaryDirectory none;
  EXPECT_EQ(read_generation_config(none.path()).sampling.temperature, 0);
  for (const char* text : {"{}", R"({"temperature": 0.6, "top_p": 0.9})", R"({"do_sample": false})"}) {
    const Sampling sampling = read(text);
    EXPECT_EQ(sampling.temperature, 0) << text;
    EXPECT_EQ(sampling.top_k, 0) << text;
  }
}

// tests/python/generation_test.py compares the samples with transformers.
TEST(GenerationConfigs, TopKDefaultsToFiftyWithDoSample) {
  for (const char* text : {R"({"do_sample": true})", R"({"do_sample": true, "top_k": null})"}) {
    const Sampling sampling = read(text);
    EXPECT_EQ(sampling.temperature, 1) << text;
    EXPECT_EQ(sampling.top_k, 50) << text;
    EXPECT_EQ(sampling.top_p, 1) << text;
    EXPECT_EQ(sampling.min_p, 0) << text;
    EXPECT_EQ(sampling.repetition_penalty, 1) << text;
  }
  EXPECT_EQ(read(R"({"do_sample": true, "top_k": 0})").top_k, 0);  // all
  EXPECT_EQ(read(R"({"do_sample": true, "top_k": 7})").top_k, 7);
}

TEST(GenerationConfigs, SetSamplingLengthAndEosTokens) {
  const test::TemporaryDirectory directory;
  directory.put(
      "generation_config.json",
      R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.3,
                 "max_new_tokens": 12, "eos_token_id": [3, 5]})");
  const GenerationConfig config = read_generation_config(directory.path());
  EXPECT_EQ(config.sampling.temperature, 0.6);
  EXPECT_EQ(config.sampling.top_p, 0.9);
  EXPECT_EQ(config.sampling.min_p, 0.05);
  EXPECT_EQ(config.sampling.repetition_penalty, 1.3);
  EXPECT_EQ(config.max_new_tokens, 12);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{3, 5}));
}

TEST(GenerationConfigs, SetRules) {
  const test::TemporaryDirectory directory;
  directory.put("generation_config.json",
                R"({"suppress_tokens": [1, 2], "begin_suppress_tokens": [3], "no_repeat_ngram_size": 4,
                    "bad_words_ids": [[5], [6, 7]], "min_new_tokens": 8, "min_length": 9, "max_length": 10,
                    "forced_eos_token_id": 11, "stop_strings": ["a", "b"], "typical_p": 0.5, "num_beams": 1})");
  const GenerationConfig config = read_generation_config(directory.path());
  EXPECT_EQ(config.rules, (TokenRules{{1, 2}, {3}, 4, {{5}, {6, 7}}, 8, 9, {11}}));
  EXPECT_EQ(config.max_length, 10);
  EXPECT_EQ(config.stop_strings, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(config.sampling.typical_p, 0.5);
  EXPECT_TRUE(config.unsupported.empty());
}

TEST(GenerationConfigs, NameFieldsThatAreNotSupported) {
  const test::TemporaryDirectory directory;
  directory.put("generation_config.json",
                R"({"num_beams": 4, "penalty_alpha": 0.6, "guidance_scale": 1.0, "forced_bos_token_id": null,
                    "cache_implementation": "static", "sequence_bias": [[[1], -2.5]]})");
  const GenerationConfig config = read_generation_config(directory.path());
  EXPECT_EQ(config.unsupported,
            (std::vector<std::string>{"num_beams 4", "penalty_alpha 0.6", "sequence_bias [[[1],-2.5]]"}));
  ::testing::internal::CaptureStderr();
  warn_of_unsupported_fields(config, "generate");
  warn_of_unsupported_fields({}, "generate");
  EXPECT_EQ(
      ::testing::internal::GetCapturedStderr(),
      "warning: generate: generation_config.json should have only supported fields; got num_beams 4, "
      "penalty_alpha 0.6, sequence_bias [[[1],-2.5]]; tokens differ from those of transformers [SW0544]\n");
}

TEST(GenerationConfigs, RefuseOtherTypes) {
  for (const auto& [text, part] :
       {std::pair(R"({"bad_words_ids": [1]})",
                  "bad_words_ids must be a list of lists of token ids; got 1 in it"),
        {R"({"bad_words_ids": 1})", "bad_words_ids must be a list of lists of token ids; got 1"},
        {R"({"stop_strings": [""]})", "stop_strings must be a list of nonempty strings; got \"\""},
        {R"({"max_length": 0})", "max_length must be 1 or more; got 0"},
        {R"({"typical_p": 0})", "typical_p must be in (0, 1]; got 0"}})
    EXPECT_PRED2(test::contains, test::error_text([text] { read(text); }), part);
}

}  // namespace
}  // namespace shardwise::infer::generation_config_test
