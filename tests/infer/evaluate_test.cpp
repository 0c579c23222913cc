// Evaluation over ranks against the unsharded reference's logits.
#include "shardwise/infer/evaluate.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>

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
}

}  // namespace
}  // namespace shardwise::testing::evaluate_test
