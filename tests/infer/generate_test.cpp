// Generation over ranks against the unsharded reference's logits.
#include "shardwise/infer/generate.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "tests/support/cases.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"
#include "tests/support/small_config.h"

namespace shardwise::testing {
namespace {

using Ids = std::vector<int64_t>;

/// The reference's logits of the token after `text`.
at::Tensor reference_logits(const model::Config& config, const Tensors& weights, const Ids& text) {
  const auto length = static_cast<int64_t>(text.size());
  Batch batch{at::empty({length, 1}, at::kLong), at::full({length, 1}, 0, at::kLong), 1};
  std::copy(text.begin(), text.end(), batch.ids.mutable_data_ptr<int64_t>());
  return reference_step(config, weights, batch, /*masks=*/{}).logits.select(0, -1).squeeze(0);
}

Ids reference_tokens(const model::Config& config, const Tensors& weights, const Ids& prompt, int64_t count,
                     const infer::Sampling& sampling) {
  Ids text = prompt;
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor logits = reference_logits(config, weights, text);
    text.push_back(infer::choose_token(logits, sampling, static_cast<int64_t>(text.size())));
  }
  return {text.begin() + static_cast<int64_t>(prompt.size()), text.end()};
}

/// What every rank of `ranks` returns and is shown.
std::vector<Ids> generated(const model::Config& config, const Tensors& whole, const Ids& prompt,
                           int64_t count, const infer::Sampling& sampling, int ranks) {
  std::vector<Ids> results(ranks);
  on_ranks(ranks, [&](const comm::Group& group) {
    const model::DecoderWeights weights(config, group, at::kDouble);
    load_slices_(weights, whole);
    Ids shown;
    results[group.rank()] =
        infer::generate(weights, prompt, count, sampling, [&](int64_t id) { shown.push_back(id); });
    EXPECT_EQ(shown, results[group.rank()]);
  });
  return results;
}

class Generate : public ::testing::TestWithParam<int> {
 protected:
  // For tensors this small threads cost more than they bring.
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

TEST_P(Generate, FollowsTheReference) {
  const model::Config config = small_config();
  const Tensors weights = random_weights(config, /*seed=*/5, at::kDouble);
  const Ids prompt = {3, 16, 0};
  for (const infer::Sampling sampling : {infer::Sampling{}, infer::Sampling{0.8, 1}}) {
    const Ids expected = reference_tokens(config, weights, prompt, /*count=*/6, sampling);
    for (const Ids& result : generated(config, weights, prompt, /*count=*/6, sampling, GetParam())) {
      EXPECT_EQ(result, expected) << "temperature " << sampling.temperature;
    }
  }
}

TEST_P(Generate, EndsWithATokenThatEndsTexts) {
  model::Config config = small_config();
  const Tensors weights = random_weights(config, /*seed=*/5, at::kDouble);
  const infer::Sampling sampling{2, 9};
  const Ids whole = reference_tokens(config, weights, {1}, /*count=*/6, sampling);
  config.eos_token_id = {whole[4]};
  const auto end = std::find(whole.begin(), whole.end(), whole[4]) + 1;
  for (const Ids& result : generated(config, weights, {1}, /*count=*/6, sampling, GetParam())) {
    EXPECT_EQ(result, Ids(whole.begin(), end));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Generate, ::testing::Values(1, 2, 3, 4));

TEST(GenerateErrors, NameTheValueAndTheRule) {
  const model::DecoderWeights weights(small_config(), comm::Group(), at::kDouble);
  const auto said = [&](const Ids& prompt, int64_t count, const infer::Sampling& sampling) {
    return test::error_text([&] { infer::generate(weights, prompt, count, sampling); });
  };
  EXPECT_EQ(said({}, 1, {}), "generate: the prompt must hold a token; got none");
  EXPECT_EQ(said({0, 17}, 1, {}), "generate: the prompt's ids must lie from 0 to below 17; got 17");
  EXPECT_EQ(said({-1}, 1, {}), "generate: the prompt's ids must lie from 0 to below 17; got -1");
  EXPECT_EQ(said({1}, -1, {}), "generate: max_new_tokens must not be negative; got -1");
  EXPECT_EQ(said({1, 2}, 15, {}),
            "generate: prompt and new tokens must fit max_position_embeddings, 16; got 2 and 15");
  EXPECT_EQ(said({1}, 1, {.temperature = -0.5}), "generate: temperature must be 0 or more; got -0.5");
  EXPECT_EQ(said({1}, 1, {.temperature = NAN}), "generate: temperature must be 0 or more; got nan");
}

TEST(GenerateErrors, NoneForNothingToDo) {
  const model::DecoderWeights weights(small_config(), comm::Group(), at::kDouble);
  EXPECT_EQ(infer::generate(weights, {1}, 0, {}), Ids{});
}

}  // namespace
}  // namespace shardwise::testing
