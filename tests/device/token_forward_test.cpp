// Decoding through graphs: the logits that layers give without them, whatever sequences a batch has.
#include "shardwise/infer/token_forward.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <deque>

#include "shardwise/infer/cache.h"
#include "tests/device/device.h"

namespace shardwise::device_test {
namespace {

using at::Tensor;

const std::string kLlamaPreset = "llama-3.2-1b";
constexpr int64_t kLongest = 200, kPrompt = 4;  // of which attention makes two splits

/// The families differ in positions: rotary and learned.
config::Config config_of(const std::string& family) {
  config::Config config = config::preset(family);
  config.vocab_size = 17;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 6;
  config.num_key_value_heads = family == "gpt2" ? 6 : 3;
  config.head_dim = 8;
  config.max_position_embeddings = 256;
  return config;
}

/// Returns a cache of zeros.
nn::Cache cache_for(const model::DecoderWeights& weights, int64_t capacity, at::ScalarType dtype) {
  nn::Cache cache = infer::empty_cache(weights, capacity, dtype);
  for (const auto& [keys, values] : cache.layers) {
    for (const kernels::StoredHeads* heads : {&keys, &values}) {
      heads->rows.zero_();
      if (heads->is_quantized()) heads->scales.zero_();
    }
  }
  return cache;
}

/// Sequences, and what their forwards give.
struct Sequences {
  const model::DecoderWeights& weights;
  std::deque<nn::Cache> caches = {};

  void add(int64_t capacity, at::ScalarType dtype) {
    caches.push_back(cache_for(weights, capacity, dtype));
    nn::Step step(weights.group(), kPrompt);
    step.cached = {{&caches.back(), kPrompt}};
    model::Decoder<nn::Invariant>(weights).logits(at::arange(kPrompt, at::kLong).unsqueeze(1) + 1, step);
    caches.back().length = kPrompt;
  }
  std::vector<nn::CachedRows> rows(int64_t each) {
    std::vector<nn::CachedRows> rows;
    for (nn::Cache& cache : caches) rows.push_back({&cache, each});
    return rows;
  }
  void advance(int64_t rows) {
    for (nn::Cache& cache : caches) cache.length += rows;
  }
};

Tensor layers_logits(const model::DecoderWeights& weights, const Tensor& ids,
                     const std::vector<nn::CachedRows>& rows) {
  nn::Step step(weights.group(), ids.size(0));
  step.cached = rows;
  return model::Decoder<nn::Invariant>(weights).logits(ids, step).local().select(1, 0).cpu();
}

class TokenForwardOnDevice : public ::testing::TestWithParam<std::tuple<std::string, at::ScalarType>> {};

// Sequences come and go, with caches of other lengths at other addresses, and rows as of drafts.
TEST_P(TokenForwardOnDevice, GivesTheBitsOfTheLayers) {
  const c10::InferenceMode inference_mode;
  const auto& [model_type, cache_dtype] = GetParam();
  model::DecoderWeights weights(config_of(model_type), testing::on_device(), at::kBFloat16,
                                model::WeightUse::inference);
  weights.initialize_(/*seed=*/1);
  const infer::StageForward stage("test", weights, comm::Group(weights.group().device()));
  infer::TokenForward forward(weights, stage, kLongest);
  Sequences sequences{weights};
  int64_t id = 0;
  const auto compare = [&](int64_t forwards, int64_t rows_each) {
    for (int64_t i = 0; i < forwards; ++i) {
      const std::vector<nn::CachedRows> rows = sequences.rows(rows_each);
      const Tensor ids = (at::arange(id, id + nn::rows_of(rows), at::kLong) % 11).unsqueeze(1);
      const Tensor expected = layers_logits(weights, ids, rows);
      EXPECT_TRUE(forward.logits(ids, rows).cpu().equal(expected))
          << sequences.caches.size() << " sequences, forward " << i;
      sequences.advance(rows_each);
      id += 5;
    }
  };
  sequences.add(20, cache_dtype);
  compare(4, 1);
  sequences.add(kLongest, cache_dtype);
  compare(4, 1);
  sequences.caches.pop_front();
  sequences.caches.front().length = 127;  // the next tokens are in a second split; the rows before are zeros
  compare(3, 1);
  compare(3, 2);  // the graph of two tokens, of one sequence now
  sequences.add(30, cache_dtype);
  compare(2, 1);
}

INSTANTIATE_TEST_SUITE_P(Models, TokenForwardOnDevice,
                         ::testing::Combine(::testing::Values(kLlamaPreset, std::string("gpt2")),
                                            ::testing::Values(at::kBFloat16, at::kChar)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == kLlamaPreset ? "Llama" : "Gpt2") +
                                  (std::get<1>(info.param) == at::kChar ? "Int8" : "");
                         });

TEST(TokenForwardGraphs, AreCapturedOnceForEachNumberOfTokens) {
  const c10::InferenceMode inference_mode;
  model::DecoderWeights weights(config_of(kLlamaPreset), testing::on_device(), at::kFloat,
                                model::WeightUse::inference);
  weights.initialize_(/*seed=*/1);
  const infer::StageForward stage("test", weights, comm::Group(weights.group().device()));
  infer::TokenForward forward(weights, stage, kLongest);
  Sequences sequences{weights};
  sequences.add(kLongest, at::kFloat);
  const auto captures_and_replays = [&](int64_t rows) {
    const int64_t captures = testing::emulated_captures(), replays = testing::emulated_replays();
    forward.logits(at::arange(rows, at::kLong).unsqueeze(1), sequences.rows(rows));
    return std::pair{testing::emulated_captures() - captures, testing::emulated_replays() - replays};
  };
  using Pair = std::pair<int64_t, int64_t>;
  EXPECT_EQ(captures_and_replays(1), Pair(0, 0));
  EXPECT_EQ(captures_and_replays(1), Pair(1, 1));
  EXPECT_EQ(captures_and_replays(1), Pair(0, 1));
  EXPECT_EQ(captures_and_replays(2), Pair(0, 0));
  EXPECT_EQ(captures_and_replays(1), Pair(0, 1));
  EXPECT_EQ(captures_and_replays(2), Pair(1, 1));
}

}  // namespace
}  // namespace shardwise::device_test
