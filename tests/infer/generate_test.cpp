// Generation over ranks against the unsharded reference's logits.
#include "shardwise/infer/generate.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "shardwise/base/philox.h"
#include "tests/infer/generated.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::generate_test {
namespace {

using infer::Request;
using infer::Sampling;

/// Returns the reference's logits of the token after `text`, [v].
at::Tensor reference_logits(const config::Config& config, const Tensors& weights, const Ids& text) {
  const auto length = static_cast<int64_t>(text.size());
  Batch batch{at::empty({length, 1}, at::kLong), at::full({length, 1}, 0, at::kLong), 1};
  std::copy(text.begin(), text.end(), batch.ids.mutable_data_ptr<int64_t>());
  return reference_step(config, weights, batch, /*masks=*/{}).logits.select(0, -1).squeeze(0);
}

struct Expected {
  Ids ids;
  std::vector<double> logprobs;
};

/// Returns the random number of a position, from 53 bits.
double reference_random(const Sampling& sampling, int64_t position) {
  const auto index = static_cast<uint64_t>(position);
  const base::PhiloxBlock block = base::philox(index, base::PhiloxUse::elements, sampling.seed);
  const uint64_t bits = uint64_t{block.word[0]} << 32 | block.word[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

/// Returns the token of the largest logit, or the one whose interval of the cumulative softmax has the random
/// number of `position`. Of the sampling parameters it knows temperature, top_k and seed.
int64_t reference_token(const at::Tensor& logits, const Sampling& sampling, int64_t position) {
  if (sampling.temperature == 0) return logits.argmax().item<int64_t>();
  at::Tensor scaled = logits / sampling.temperature;
  if (sampling.top_k > 0) {
    const at::Tensor least = std::get<0>(scaled.topk(sampling.top_k)).min();
    scaled = scaled.masked_fill(scaled < least, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor ends = scaled.softmax(0).cumsum(0);
  return (ends <= reference_random(sampling, position)).sum().item<int64_t>();
}

/// Generates token by token with the reference, recomputing the full sequence each time. No penalty.
Expected reference_tokens(const config::Config& config, const Tensors& weights, const Request& request) {
  Ids text = request.prompt;
  Expected expected;
  for (int64_t i = 0; i < request.max_new_tokens; ++i) {
    const at::Tensor logits = reference_logits(config, weights, text);
    const int64_t id = reference_token(logits, request.sampling, std::ssize(text));
    text.push_back(id);
    expected.ids.push_back(id);
    expected.logprobs.push_back(logits.log_softmax(0)[id].item<double>());
  }
  return expected;
}

void expect_matches(const infer::Completion& result, const Request& request, const Expected& expected) {
  EXPECT_EQ(result.token_ids, expected.ids);
  ASSERT_EQ(result.logprobs.size(), request.wants_logprobs ? expected.logprobs.size() : 0);
  for (size_t i = 0; i < result.logprobs.size(); ++i)
    EXPECT_NEAR(result.logprobs[i], expected.logprobs[i], 1e-9);
}

class Generate : public ::testing::TestWithParam<int> {
 protected:
  // Threads cost more than they save on tensors this small.
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

void expect_reference_tokens(const config::Config& config, int ranks) {
  const Tensors weights = random_weights(config, /*seed=*/5, at::kDouble);
  std::vector<Request> requests{{{3, 16, 0}, 6, {}},
                                {{3, 16, 0}, 6, {.temperature = 0.8, .seed = 1}},
                                {{5}, 9, {.temperature = 1.5, .top_k = 4, .seed = 3}},
                                {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 5, {}}};
  for (Request& request : requests) request.wants_logprobs = true;
  for (const auto& result : generated(config, weights, requests, ranks)) {
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE("request " + std::to_string(i));
      expect_matches(result.completions[i], requests[i], reference_tokens(config, weights, requests[i]));
    }
  }
}

TEST_P(Generate, MatchesTheReference) {
  for (const auto& [name, config] : variants()) {
    SCOPED_TRACE(name);
    expect_reference_tokens(config, GetParam());
  }
}

// The head counts of Llama 3 (32 over 8, of 64 elements in 3.2) and of GPT-2 (12 of 64), whose heads 8 ranks
// do not divide; those of Qwen2 of 0.5B and 7B, with fewer KV heads than ranks, of Llama 2 of 7B, and of
// Qwen3 of 0.6B and 32B, with small heads.
TEST(GenerateOnEightRanks, MatchesTheReference) {
  at::set_num_threads(1);
  config::Config llama = small_config();
  llama.num_attention_heads = 32, llama.num_key_value_heads = 8, llama.head_dim = 64;
  config::Config gpt2 = small_config();
  gpt2.num_attention_heads = gpt2.num_key_value_heads = 12, gpt2.head_dim = 64;
  gpt2.norm = config::Norm::layer, gpt2.positions = config::Positions::learned;
  std::vector<config::Config> configs{llama, gpt2};
  for (const auto& [query, kv] : std::vector<std::pair<int64_t, int64_t>>{{14, 2}, {28, 4}, {32, 32}}) {
    configs.push_back(small_config());
    configs.back().num_attention_heads = query, configs.back().num_key_value_heads = kv;
    configs.back().qkv_bias = kv < 8;
  }
  for (const int64_t query : {16, 64}) {
    configs.push_back(small_config());
    configs.back().num_attention_heads = query, configs.back().num_key_value_heads = 8;
    configs.back().qk_norm = true;
  }
  for (const config::Config& config : configs) {
    SCOPED_TRACE(::testing::Message()
                 << config.num_attention_heads << " over " << config.num_key_value_heads);
    expect_reference_tokens(config, /*ranks=*/8);
  }
}

/// Checks that all sequences have full length and a log probability for each token.
void expect_full_length(const infer::Generated& result, const std::vector<Request>& requests) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto& [token_ids, logprobs, finish_reason] = result.completions[i];
    EXPECT_EQ(std::ssize(token_ids), requests[i].max_new_tokens);
    ASSERT_EQ(logprobs.size(), token_ids.size());
    for (const double logprob : logprobs) EXPECT_LE(logprob, 1e-12);
  }
}

// `generated` compares the ranks. Low-precision dtypes reveal differences in the order of summation. Samples
// from each rank's best candidates and from all logits, alone and in a batch.
TEST_P(Generate, EveryRankReturnsTheSameBits) {
  std::vector<Request> requests{{{3, 16, 0}, 8, {}},
                                {{5}, 12, {.temperature = 1.2, .seed = 2}},
                                {{1, 2, 3, 4, 5, 6, 7}, 9, {.temperature = 1.5, .top_k = 4, .seed = 3}},
                                {{9, 9}, 10, {.temperature = 0.9, .top_p = 0.8, .repetition_penalty = 1.3}}};
  for (Request& request : requests) request.wants_logprobs = true;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [name, config] : variants()) {
      const Tensors weights = random_weights(config, /*seed=*/7, dtype);
      for (const infer::Batching batching : {infer::Batching{1, 512}, {3, 4}}) {
        SCOPED_TRACE(::testing::Message()
                     << name << ", " << dtype << ", " << batching.sequences << " sequences");
        expect_full_length(generated(config, weights, requests, GetParam(), batching, dtype).at(0), requests);
      }
    }
  }
}

// For any batch size and any split of the prompts.
TEST_P(Generate, BatchingChangesNoToken) {
  const config::Config config = small_config();
  const Tensors weights = random_weights(config, /*seed=*/6, at::kDouble);
  std::vector<Request> requests;
  for (int64_t i = 0; i < 5; ++i) {
    Request request{{}, 1 + 2 * (i % 3), {.temperature = i % 2 ? 1.2 : 0, .seed = static_cast<uint64_t>(i)}};
    for (int64_t j = 0; j < 1 + 3 * (i % 4); ++j) request.prompt.push_back((7 * i + 5 * j) % 17);
    request.wants_logprobs = i != 2;
    requests.push_back(request);
  }
  std::vector<Expected> expected;
  for (const Request& request : requests) expected.push_back(reference_tokens(config, weights, request));
  for (const infer::Batching batching : {infer::Batching{1, 512}, {2, 1}, {5, 4}, {16, 7}, {3, 512}}) {
    for (const auto& result : generated(config, weights, requests, GetParam(), batching)) {
      for (size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(::testing::Message()
                     << batching.sequences << " sequences, " << batching.rows << " rows, " << i);
        expect_matches(result.completions[i], requests[i], expected[i]);
      }
    }
  }
}

// Attention reads the rounded keys and values wherever it runs: of one new row, of a few or of many.
TEST_P(Generate, AnInt8CacheGivesTheSameTokensForAnyRanksAndChunks) {
  for (auto [name, config] : variants()) {
    config.max_position_embeddings = 64;
    const Tensors weights = random_weights(config, /*seed=*/6, at::kDouble);
    Request request{{}, 12, {}, /*wants_logprobs=*/true};
    for (int64_t i = 0; i < 40; ++i) request.prompt.push_back(7 * i % 17);
    const auto run = [&](int ranks, int64_t rows, std::optional<at::ScalarType> dtype) {
      return generated(config, weights, {request}, ranks, {.rows = rows, .cache_dtype = dtype})[0]
          .completions[0];
    };
    const infer::Completion exact = run(1, 512, {}), expected = run(1, 512, at::kChar);
    const double difference = std::abs(exact.logprobs[0] - expected.logprobs[0]);
    EXPECT_GT(difference, 1e-7) << name;
    EXPECT_LT(difference, 0.02) << name;
    for (const int64_t rows : {1, 7, 20, 512}) {
      SCOPED_TRACE(::testing::Message() << name << ", " << rows << " rows");
      const infer::Completion result = run(GetParam(), rows, at::kChar);
      EXPECT_EQ(result.token_ids, expected.token_ids);
      for (size_t i = 0; i < expected.logprobs.size(); ++i)
        EXPECT_NEAR(result.logprobs[i], expected.logprobs[i], 1e-9);
    }
  }
}

TEST_P(Generate, StopsAtAnEosToken) {
  config::Config config = small_config();
  const Tensors weights = random_weights(config, /*seed=*/5, at::kDouble);
  const Request request{{1}, 6, {.temperature = 2, .seed = 9}};
  const Ids full = reference_tokens(config, weights, request).ids;
  config.eos_token_id = {full[4]};
  const auto end = std::find(full.begin(), full.end(), full[4]) + 1;
  for (const auto& result : generated(config, weights, {request}, GetParam())) {
    EXPECT_EQ(result.completions[0].token_ids, Ids(full.begin(), end));
    EXPECT_EQ(result.completions[0].finish_reason, infer::FinishReason::eos);
  }
}

// Two all_reduces per layer, the embedding's, and an all_gather of a few bytes per rank instead of the
// logits.
TEST_P(Generate, HasTheDocumentedCommunicationCost) {
  const int ranks = GetParam();
  const config::Config config = small_config();
  const Tensors full_weights = random_weights(config, /*seed=*/5, at::kDouble);
  on_ranks(ranks, [&](const comm::Group& group) {
    const model::DecoderWeights weights(config, group, at::kDouble);
    load_slices_(weights, full_weights);
    const auto counts = [&](const Sampling& sampling, bool wants_logprobs) {
      const comm::Counters before = group.counters();
      infer::generate(weights, {{{1, 2, 3}, 4, sampling, wants_logprobs}}, {});
      return group.counters() - before;
    };
    const int64_t forwards = 4, all_reduces = ranks > 1 ? forwards * (2 * config.num_hidden_layers + 1) : 0;
    const comm::Counters best = counts({}, false), logprobs = counts({}, true),
                         all = counts({.temperature = 1}, false);
    for (const comm::Counters* each : {&best, &logprobs, &all})
      EXPECT_EQ((*each)[comm::Op::all_reduce].calls, all_reduces);
    const int64_t gathers = ranks > 1 ? forwards : 0;
    EXPECT_EQ(best[comm::Op::all_gather].calls, gathers);
    EXPECT_EQ(best[comm::Op::all_gather].bytes, gathers * (ranks - 1) * 24);
    EXPECT_EQ(logprobs[comm::Op::all_gather].calls, 2 * gathers);  // and the sums
    EXPECT_EQ(logprobs[comm::Op::all_gather].bytes, gathers * (ranks - 1) * (16 + 24));
    EXPECT_EQ(all[comm::Op::all_gather].calls, gathers);
  });
}

/// Returns the loss of one step and this rank's gradients.
template <nn::ResidualStream Stream>
std::vector<at::Tensor> step_results(const model::DecoderWeights& weights) {
  const Batch batch = random_batch(weights.config(), /*length=*/6, /*batch=*/2, 1);
  zero_gradients_(weights);
  const nn::Step step(weights.group(), batch.ids.size(0));
  const at::Tensor loss =
      model::Decoder<Stream>(weights).loss(batch.ids, batch.labels, batch.valid_tokens, step).local();
  loss.backward();
  std::vector<at::Tensor> results{loss.detach()};
  for (const nn::UsedParameter& used : weights.used_parameters())
    results.push_back(used.parameter->main_grad.clone());
  return results;
}

// generate runs in c10::InferenceMode, whose tensors autograd refuses.
TEST_P(Generate, LeavesWeightsThatCanBeTrained) {
  for (const auto& [name, config] : variants()) {
    SCOPED_TRACE(name);
    on_ranks(GetParam(), [&, &config = config](const comm::Group& group) {
      const model::DecoderWeights weights(config, group, at::kFloat);
      load_slices_(weights, random_weights(config, /*seed=*/5, at::kFloat));
      const auto tp = step_results<nn::Invariant>(weights),
                 sp = step_results<nn::Sharded<nn::kSequence>>(weights);
      // Longer than the batch, so that it makes the rotary tables that a step then uses.
      infer::generate(weights, {{{3, 16, 0}, 12, {}}}, {});
      EXPECT_TRUE(std::ranges::equal(step_results<nn::Invariant>(weights), tp, same_bits));
      EXPECT_TRUE(std::ranges::equal(step_results<nn::Sharded<nn::kSequence>>(weights), sp, same_bits));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Generate, ::testing::Values(1, 2, 3, 4));

TEST(GenerateOnOneRank, StopsAtTheCallersRequestAndFreesTheSlot) {
  const config::Config config = small_config();
  model::DecoderWeights weights(config, comm::Group(), at::kDouble);
  weights.initialize_(3);
  int64_t seen = 0;
  const auto result =
      infer::generate(weights, {{{1, 2}, 9, {}}, {{3}, 2, {}}}, {}, {.sequences = 1, .rows = 8},
                      [&](size_t request, int64_t) { return request > 0 || ++seen < 3; });
  EXPECT_EQ(result.completions[0].token_ids.size(), 3u);
  EXPECT_EQ(result.completions[0].finish_reason, infer::FinishReason::stop);
  EXPECT_EQ(result.completions[1].token_ids.size(), 2u);
  EXPECT_EQ(result.completions[1].finish_reason, infer::FinishReason::length);
  EXPECT_EQ(result.timings.prompt_tokens, 3);
  EXPECT_EQ(result.timings.generated_tokens, 3);  // each sequence's first token came from prefill
}

}  // namespace
}  // namespace shardwise::testing::generate_test
