// A batch of sequences of different lengths, padded on either side, gives the loss and gradients of the
// sequences one by one, for every residual stream type and number of ranks.
#include <gtest/gtest.h>

#include "tests/support/cases.h"
#include "tests/support/ranks.h"
#include "tests/support/small_config.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::padding_test {
namespace {

constexpr int64_t kLength = 9;
const std::vector<base::Range> kValid = {{0, 9}, {4, 9}, {0, 2}, {3, 8}, {5, 5}};

config::Config config_of(bool has_learned_positions) {
  config::Config config = small_config();
  if (has_learned_positions) {
    config.positions = config::Positions::learned;
    config.norm = config::Norm::layer;
  } else {
    config.qk_norm = true;
    config.sliding_window = 3;
  }
  return config;
}

/// Returns a batch whose padding has random ids and labels too.
Batch batch_of(const config::Config& config) {
  return random_batch(config, kLength, static_cast<int64_t>(kValid.size()), 1);
}

/// Returns the valid tokens of one sequence.
Batch alone(Batch batch, int64_t sequence) {
  const auto [begin, end] = kValid[sequence];
  for (at::Tensor* tensor : {&batch.ids, &batch.labels}) {
    *tensor = tensor->narrow(1, sequence, 1).narrow(0, begin, end - begin).contiguous();
  }
  return batch;
}

struct Result {
  double loss = 0;
  std::vector<at::Tensor> gradients;
};

/// Accumulates the micro-batches.
Result run(const model::DecoderWeights& weights, Stream stream, const std::vector<Batch>& batches,
           const std::vector<base::Range>& valid) {
  zero_gradients_(weights);
  Result result;
  for (const Batch& batch : batches) {
    nn::Step step = make_step(weights.group(), Path::symmetric, batch.ids.size(0), {}, /*dropout=*/0);
    step.valid = valid;
    result.loss += forward_backward(weights, stream, batch, step).loss;
  }
  parallel::sync_gradients_(specs_of(weights, stream), weights.group());
  for (const nn::UsedParameter& used : weights.used_parameters())
    result.gradients.push_back(used.parameter->main_grad.clone());
  return result;
}

void check(const comm::Group& group, bool has_learned_positions, Stream stream) {
  const config::Config config = config_of(has_learned_positions);
  model::DecoderWeights weights(config, group, at::kDouble);
  weights.initialize_(1);
  const Batch padded = batch_of(config);
  std::vector<Batch> sequences;
  for (int64_t i = 0; i < static_cast<int64_t>(kValid.size()); ++i) {
    if (!kValid[i].empty()) sequences.push_back(alone(padded, i));
  }
  const Result got = run(weights, stream, {padded}, kValid), expected = run(weights, stream, sequences, {});
  EXPECT_NEAR(got.loss, expected.loss, 1e-13 * expected.loss);
  for (size_t i = 0; i < got.gradients.size(); ++i) {
    EXPECT_LE(relative_error(got.gradients[i], expected.gradients[i]), 1e-10)
        << weights.used_parameters()[i].parameter->name;
  }
  const Result unpadded = run(weights, stream, {padded}, {});
  EXPECT_GT(std::abs(unpadded.loss - expected.loss), 0.1 * expected.loss) << "the batch has no padding";
}

class PaddedBatch : public ::testing::TestWithParam<int> {};

TEST_P(PaddedBatch, EqualsItsSequencesOneByOne) {
  on_ranks(GetParam(), [](const comm::Group& group) {
    for (const bool has_learned_positions : {false, true}) {
      for (const Stream stream : {Stream::tp, Stream::tp_sp}) {
        SCOPED_TRACE(::testing::Message() << has_learned_positions << static_cast<int>(stream));
        check(group, has_learned_positions, stream);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, PaddedBatch, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace shardwise::testing::padding_test
