// Evaluation and generation with quantized weights over ranks, against the unsharded reference with the
// dequantized weights.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "shardwise/checkpoint/quantize.h"
#include "shardwise/infer/evaluate.h"
#include "shardwise/infer/generate.h"
#include "tests/checkpoint/quantized_model.h"
#include "tests/infer/reference_weights.h"
#include "tests/support/ranks.h"

namespace shardwise::testing::quantized_test {
namespace {

using Ids = std::vector<int64_t>;

const Ids kPrompt{3, 16, 0, 7};
constexpr int64_t kNew = 8;

/// Returns the reference's log probabilities of each next token of `text`, [tokens, v].
at::Tensor reference_logprobs(const config::Config& config, const Tensors& weights, const Ids& text) {
  const auto length = static_cast<int64_t>(text.size());
  const at::Tensor ids = at::tensor(text, at::kLong).unsqueeze(1);
  const Batch batch{ids, at::full({length, 1}, 0, at::kLong), 1};
  return reference_step(config, weights, batch, /*masks=*/{}).logits.select(1, 0).log_softmax(1);
}

/// Returns the most likely tokens after kPrompt, each from the whole text before it.
Ids expected_ids(const config::Config& config, const Tensors& weights) {
  Ids text = kPrompt;
  for (int64_t i = 0; i < kNew; ++i)
    text.push_back(reference_logprobs(config, weights, text)[-1].argmax().item<int64_t>());
  return {text.begin() + std::ssize(kPrompt), text.end()};
}

double expected_nll(const config::Config& config, const Tensors& weights, const Ids& text) {
  const at::Tensor next = at::tensor(Ids(text.begin() + 1, text.end()), at::kLong).unsqueeze(1);
  const at::Tensor logprobs = reference_logprobs(config, weights, Ids(text.begin(), text.end() - 1));
  return -logprobs.gather(1, next).mean().item<double>();
}

/// Compares with the reference, from dense fp64 weights. In fp64 only a wrong quantized weight, scale or
/// position makes a visible difference.
void expect_matches(const std::string& directory, const config::Config& config,
                    const Tensors& dense_weights) {
  const config::Config dense = config::dense(config);
  const Tensors weights = reference_weights(dense, dense_weights);
  const Ids text{1, 5, 9, 2, 2, 16, 11, 0, 4};
  const Ids ids = expected_ids(dense, weights);
  const double nll = expected_nll(dense, weights, text);
  for (int ranks = 1; ranks <= 4; ++ranks) {
    on_ranks(ranks, [&](const comm::Group& group) {
      const model::DecoderWeights weights(config, group, at::kDouble);
      checkpoint::load_weights(directory, weights);
      EXPECT_EQ(infer::generate(weights, {{kPrompt, kNew, {}}}, {}).completions[0].token_ids, ids) << ranks;
      EXPECT_NEAR(infer::evaluate(weights, text, {.length = 16}).nll, nll, 1e-12) << ranks;
    });
  }
}

class QuantizedRun : public ::testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

TEST_P(QuantizedRun, MatchesTheReferenceAtEveryTpSize) {
  const config::Config config = uneven_config(/*is_tied=*/false, GetParam());
  const FullState full = full_state(config, at::kFloat, /*seed=*/21);
  const TemporaryDirectory directory;
  const std::string path = put_weights(directory.path(), config, full.tensors);
  for (const int64_t bits : {4, 8}) {
    const config::Config quantized = quantized_on_load(config, bits, bits == 4 ? 8 : 0);
    expect_matches(path, quantized, quantized_tensors(quantized, full.tensors));
  }
}
INSTANTIATE_TEST_SUITE_P(Families, QuantizedRun, ::testing::Values("llama", "phi3", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

TEST(QuantizedEmbeddings, MatchTheReferenceTiedAndUntied) {
  for (const auto& [is_tied, int8_head] :
       {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
    config::Config config = packable_config();
    config.tie_word_embeddings = is_tied;
    config.vocab_size = 24;
    const FullState full = full_state(config, at::kFloat, /*seed=*/22);
    const TemporaryDirectory directory;
    const std::string path = put_weights(directory.path(), config, full.tensors),
                      packed = directory / "packed";
    const config::Quantization how{.file_format = config::Quantization::FileFormat::gptq,
                                   .bits = 4,
                                   .group_size = 8,
                                   .lm_head = !is_tied,
                                   .embeddings = true,
                                   .int8_head = int8_head};
    checkpoint::quantize(path, packed, how, [](int64_t, int64_t) {});
    const config::Config stored = config::load_config(packed);
    expect_matches(packed, stored, quantized_tensors(stored, full.tensors));
  }
}

TEST(QuantizedWeights, HaveNoGradient) {
  const config::Config config = quantized_on_load(uneven_config(), 8, 0);
  const model::DecoderWeights weights(config, comm::Group(), at::kFloat);
  const nn::Step step(comm::Group(), 2);
  EXPECT_THROW(model::Decoder<nn::Invariant>(weights).logits(at::full({2, 1}, 3, at::kLong), step),
               c10::ValueError);
}

}  // namespace
}  // namespace shardwise::testing::quantized_test
