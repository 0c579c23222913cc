// Fields of generation_config.json and transformers' defaults for missing ones.
#include "shardwise/infer/generation_config.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace shardwise::infer::generation_config_test
