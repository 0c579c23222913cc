// Evaluation over ranks against the unsharded reference's logits.
#include "shardwise/infer/evaluate.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <tuple>

#include "shardwise/infer/generate.h"
#include "tests/support/cases.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"
#include "tests/support/small_config.h"

namespace shardwise::testing::evaluate_test {
namespace {

using Ids = std::vector<int64_t>;

Ids text_of(int64_t length) {
  Ids text;
  for (int64_t i = 0; i < length; ++i) text.push_back((5 * i * i + 3 * i) % 17);
  return text;
}

/// Returns the mean −log p of all tokens of `text` but the first, each predicted from those before it in its
/// window.
double expected_nll(const config::Config& config, const Tensors& weights, const Ids& text, int64_t length) {
  double sum = 0;
  for (int64_t label = 1; label < std::ssize(text); ++label) {
    const int64_t begin = (label - 1) / length * length;
    Batch batch{at::empty({label - begin, 1}, at::kLong), at::full({label - begin, 1}, 0, at::kLong), 1};
    std::copy(text.begin() + begin, text.begin() + label, batch.ids.mutable_data_ptr<int64_t>());
    const at::Tensor logits =
        reference_step(config, weights, batch, /*masks=*/{}).logits.select(0, -1).squeeze(0);
    sum -= logits.log_softmax(0)[text[label]].item<double>();
  }
  return sum / static_cast<double>(text.size() - 1);
}

TEST(Evaluate, MatchesTheReferenceAtEveryTpSize) {
  at::set_num_threads(1);  // threads cost more than they save on tensors this small
  const config::Config config = small_config();
  const Tensors full_weights = random_weights(config, /*seed=*/5, at::kDouble);
  for (const int64_t tokens : {2, 13, 41}) {
    const Ids text = text_of(tokens);
    for (const int64_t length : {1, 5, 16}) {
      const double expected = expected_nll(config, full_weights, text, length);
      for (int ranks = 1; ranks <= 4; ++ranks) {
        on_ranks(ranks, [&](const comm::Group& group) {
          const model::DecoderWeights weights(config, group, at::kDouble);
          load_slices_(weights, full_weights);
          int64_t reported = 0;
          const auto result = infer::evaluate(weights, text, {.length = length, .batch_size = 3},
                                              [&](int64_t predicted) { reported = predicted; });
          EXPECT_NEAR(result.nll, expected, 1e-10) << tokens << " tokens by " << length;
          EXPECT_NEAR(result.perplexity(), std::exp(expected), 1e-8);
          EXPECT_EQ(result.predicted, tokens - 1);
          EXPECT_EQ(reported, tokens - 1);
        });
      }
    }
  }
}

/// 40 windows at once are computed in chunks of 12 of their 16 tokens.
TEST(Evaluate, MatchesTheReferenceWithACache) {
  at::set_num_threads(1);
  const config::Config config = small_config();
  const Tensors full_weights = random_weights(config, /*seed=*/6, at::kDouble);
  for (const auto& [tokens, length, batch] :
       {std::tuple<int64_t, int64_t, int64_t>{2, 1, 1}, {13, 5, 3}, {41, 16, 3}, {641, 16, 40}}) {
    const Ids text = text_of(tokens);
    const double expected = expected_nll(config, full_weights, text, length);
    for (int ranks = 1; ranks <= 4; ++ranks) {
      on_ranks(ranks, [&](const comm::Group& group) {
        const model::DecoderWeights weights(config, group, at::kDouble);
        load_slices_(weights, full_weights);
        const infer::EvaluationWindows windows{length, batch, at::kDouble};
        EXPECT_NEAR(infer::evaluate(weights, text, windows).nll, expected, 1e-10) << tokens << " tokens";
      });
    }
  }
}

/// The log probabilities that generation gives its own tokens are those that an evaluation finds.
TEST(Evaluate, RoundsTheCacheAsGenerationDoes) {
  at::set_num_threads(1);
  const config::Config config = small_config();
  const Tensors full_weights = random_weights(config, /*seed=*/7, at::kDouble);
  const Ids prompt{3, 1, 4, 1, 5};
  for (int ranks = 1; ranks <= 4; ++ranks) {
    on_ranks(ranks, [&](const comm::Group& group) {
      const model::DecoderWeights weights(config, group, at::kDouble);
      load_slices_(weights, full_weights);
      infer::Request request{prompt, /*max_new_tokens=*/10, {}};
      request.wants_logprobs = true;
      const auto generated =
          infer::generate(weights, {request}, {}, {.cache_dtype = at::kChar}).completions[0];
      double expected = 0;
      for (const double logprob : generated.logprobs) expected -= logprob;
      Ids text = prompt;
      text.insert(text.end(), generated.token_ids.begin(), generated.token_ids.end());
      const auto sum = [&](const Ids& ids, std::optional<at::ScalarType> dtype) {
        return infer::evaluate(weights, ids, {16, 1, dtype}).nll * static_cast<double>(ids.size() - 1);
      };
      EXPECT_NEAR(sum(text, at::kChar) - sum(prompt, at::kChar), expected, 1e-9);
      EXPECT_GT(std::abs(sum(text, std::nullopt) - sum(prompt, std::nullopt) - expected), 1e-6);
    });
  }
}

TEST(Evaluate, RejectsInvalidArguments) {
  const model::DecoderWeights weights(small_config(), comm::Group(), at::kDouble);
  const auto error = [&](const Ids& text, int64_t length, int64_t batch_size) {
    return test::error_text([&] { infer::evaluate(weights, text, {length, batch_size}); });
  };
  EXPECT_EQ(error({1}, 4, 1), "eval: the text must have at least two tokens; got 1");
  EXPECT_EQ(error({1, 17}, 4, 1), "eval: the text's ids must be in [0, 17); got 17");
  EXPECT_EQ(error({1, 2}, 17, 1),
            "eval: the window length must be from 1 to max_position_embeddings, 16; got 17");
  EXPECT_EQ(error({1, 2}, 0, 1),
            "eval: the window length must be from 1 to max_position_embeddings, 16; got 0");
  EXPECT_EQ(error({1, 2}, 4, 0), "eval: batch_size must be at least 1; got 0");
  EXPECT_EQ(test::error_text([&] {
              infer::evaluate(weights, {1, 2}, {4, 1, at::kFloat});
            }),
            "eval: cache_dtype must be int8 or that of the weights, Double; got Float");
}

}  // namespace
}  // namespace shardwise::testing::evaluate_test
