// The requests that generation refuses.
#include <gtest/gtest.h>

#include <cmath>

#include "shardwise/infer/generate.h"
#include "tests/support/error_text.h"
#include "tests/support/small_config.h"

namespace shardwise::testing::generate_errors_test {
namespace {

TEST(GenerateErrors, NameTheValueAndTheRule) {
  const model::DecoderWeights weights(small_config(), comm::Group(), at::kDouble);
  const auto error = [&](const std::vector<int64_t>& prompt, int64_t count, const infer::Sampling& sampling) {
    return test::error_text([&] { infer::generate(weights, {{prompt, count, sampling}}, {}); });
  };
  EXPECT_EQ(error({}, 1, {}), "generate: the prompt must have at least one token; got none");
  EXPECT_EQ(error({0, 17}, 1, {}), "generate: the prompt's ids must be in [0, 17); got 17");
  EXPECT_EQ(error({-1}, 1, {}), "generate: the prompt's ids must be in [0, 17); got -1");
  EXPECT_EQ(error({1}, -1, {}), "generate: max_new_tokens must not be negative; got -1");
  EXPECT_EQ(error({1, 2}, 15, {}),
            "generate: prompt and new tokens must fit max_position_embeddings, 16; got 2 and 15");
  EXPECT_EQ(error({1}, 1, {.temperature = -0.5}), "generate: temperature must be 0 or more; got -0.5");
  EXPECT_EQ(error({1}, 1, {.temperature = NAN}), "generate: temperature must be 0 or more; got nan");
  EXPECT_EQ(error({1}, 1, {.top_k = -1}), "generate: top_k must be 0 (all) or more; got -1");
  EXPECT_EQ(error({1}, 1, {.top_p = 0}), "generate: top_p must be in (0, 1]; got 0");
  EXPECT_EQ(error({1}, 1, {.min_p = 1.5}), "generate: min_p must be in [0, 1]; got 1.5");
  EXPECT_EQ(error({1}, 1, {.repetition_penalty = 0}), "generate: repetition_penalty must be above 0; got 0");
  EXPECT_EQ(test::error_text([&] {
              infer::generate(weights, {{{1}, 1, {}}}, {}, {.sequences = 0});
            }),
            "generate: batching.sequences and batching.rows must be at least 1; got 0 and 512");
  EXPECT_EQ(test::error_text([&] {
              infer::generate(weights, {{{1}, 1, {}}}, {}, {.cache_dtype = at::kFloat});
            }),
            "generate: cache_dtype must be int8 or that of the weights, Double; got Float");
}

TEST(GenerateErrors, NoneForZeroNewTokensAndNoRequests) {
  const model::DecoderWeights weights(small_config(), comm::Group(), at::kDouble);
  EXPECT_EQ(infer::generate(weights, {{{1}, 0, {}}}, {}).completions[0].token_ids, (std::vector<int64_t>{}));
  EXPECT_TRUE(infer::generate(weights, {}, {}).completions.empty());
}

}  // namespace
}  // namespace shardwise::testing::generate_errors_test
