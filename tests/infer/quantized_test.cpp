// Evaluating and continuing texts with weights in codes, over ranks, against the unsharded reference with the
// numbers that the codes stand for.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "shardwise/checkpoint/quantize.h"
#include "shardwise/infer/evaluate.h"
#include "shardwise/infer/generate.h"
#include "tests/checkpoint/quantized_model.h"
#include "tests/support/ranks.h"

namespace shardwise::testing::quantized_test {
namespace {

using Ids = std::vector<int64_t>;

const Ids kPrompt{3, 16, 0, 7};
constexpr int64_t kNew = 8;

/// What generation from ordinary weights in fp64 gives.
Ids expected_ids(const model::Config& config, const Tensors& whole) {
  const model::DecoderWeights weights(config, comm::Group(), at::kDouble);
  load_slices_(weights, whole);
  return infer::generate(weights, {{kPrompt, kNew, {}}}, {}).texts[0].ids;
}

double expected_nll(const model::Config& config, const Tensors& whole, const Ids& text) {
  const model::DecoderWeights weights(config, comm::Group(), at::kDouble);
  load_slices_(weights, whole);
  return infer::evaluate(weights, text, {.length = 16}).nll;
}

/// In fp64 nothing but a wrong code, scale or place makes a difference that shows.
void expect_runs(const std::string& directory, const model::Config& config, const Tensors& numbers) {
  const model::Config ordinary = model::dense(config);
  const Ids text{1, 5, 9, 2, 2, 16, 11, 0, 4};
  const Ids ids = expected_ids(ordinary, numbers);
  const double nll = expected_nll(ordinary, numbers, text);
  for (int ranks = 1; ranks <= 4; ++ranks) {
    on_ranks(ranks, [&](const comm::Group& group) {
      const model::DecoderWeights weights(config, group, at::kDouble);
      checkpoint::load_weights(directory, weights);
      EXPECT_EQ(infer::generate(weights, {{kPrompt, kNew, {}}}, {}).texts[0].ids, ids) << ranks;
      EXPECT_NEAR(infer::evaluate(weights, text, {.length = 16}).nll, nll, 1e-12) << ranks;
    });
  }
}

class QuantizedRun : public ::testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

TEST_P(QuantizedRun, FollowsTheReferenceAtEveryTpSize) {
  const model::Config config = uneven_config(/*is_tied=*/false, GetParam());
  const WholeState whole = whole_state(config, at::kFloat, /*seed=*/21);
  const TemporaryDirectory directory;
  const std::string path = put_weights(directory.path(), config, whole.tensors);
  for (const int64_t bits : {4, 8}) {
    const model::Config wanted = converting(config, bits, bits == 4 ? 8 : 0);
    expect_runs(path, wanted, quantized_tensors(wanted, whole.tensors));
  }
}
INSTANTIATE_TEST_SUITE_P(Families, QuantizedRun, ::testing::Values("llama", "phi3", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

TEST(QuantizedTables, AreLookedUpAndMultiplied) {
  for (const bool is_tied : {false, true}) {
    model::Config config = packable_config();
    config.tie_word_embeddings = is_tied;
    config.vocab_size = 24;
    const WholeState whole = whole_state(config, at::kFloat, /*seed=*/22);
    const TemporaryDirectory directory;
    const std::string path = put_weights(directory.path(), config, whole.tensors),
                      packed = directory / "packed";
    const model::Quantization how{.files = model::Quantization::Files::gptq,
                                  .bits = 4,
                                  .group_size = 8,
                                  .head = !is_tied,
                                  .embeddings = true};
    checkpoint::quantize(path, packed, how, [](int64_t, int64_t) {});
    const model::Config stored = model::load_config(packed);
    expect_runs(packed, stored, quantized_tensors(stored, whole.tensors));
  }
}

TEST(QuantizedWeights, HaveNoGradient) {
  const model::Config config = converting(uneven_config(), 8, 0);
  const model::DecoderWeights weights(config, comm::Group(), at::kFloat);
  const nn::Step step(comm::Group(), 2);
  EXPECT_THROW(model::Decoder<nn::Invariant>(weights).logits(at::full({2, 1}, 3, at::kLong), step),
               c10::ValueError);
}

}  // namespace
}  // namespace shardwise::testing::quantized_test
