// Generation over ranks against the unsharded reference's logits.
#include "shardwise/infer/generate.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <mutex>

#include "tests/support/cases.h"
#include "tests/support/numerics.h"
#include "tests/support/ranks.h"
#include "tests/support/small_config.h"

namespace shardwise::testing::generate_test {
namespace {

using Ids = std::vector<int64_t>;
using infer::Request;
using infer::Sampling;

/// Returns the reference's logits of the token after `text`, [v].
at::Tensor reference_logits(const config::Config& config, const Tensors& weights, const Ids& text) {
  const auto length = static_cast<int64_t>(text.size());
  Batch batch{at::empty({length, 1}, at::kLong), at::full({length, 1}, 0, at::kLong), 1};
  std::copy(text.begin(), text.end(), batch.ids.mutable_data_ptr<int64_t>());
  return reference_step(config, weights, batch, /*masks=*/{}).logits.select(0, -1).squeeze(0);
}

infer::TokenLogits all_of(const at::Tensor& logits) {
  infer::TokenLogits candidates;
  for (int64_t id = 0; id < logits.size(0); ++id) {
    candidates.ids.push_back(id);
    candidates.logits.push_back(logits[id].item<double>());
  }
  return candidates;
}

struct Expected {
  Ids ids;
  std::vector<double> logprobs;
};

/// Returns the token of the largest logit by itself, without the code under test. A sample comes from
/// infer::sample_token, whose frequencies sampler_test compares with the probabilities.
int64_t reference_token(const at::Tensor& logits, const Sampling& sampling, int64_t position) {
  const infer::TokenLogits all = all_of(logits);
  if (sampling.temperature > 0) return infer::sample_token(all, sampling, position);
  return std::ranges::max_element(all.logits) - all.logits.begin();
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

/// Checks that all ranks return the same tokens. Each rank samples by itself, so one different bit could make
/// their sequences diverge.
void expect_same_on_all(const std::vector<infer::Generated>& results) {
  for (size_t rank = 1; rank < results.size(); ++rank) {
    for (size_t i = 0; i < results[0].completions.size(); ++i) {
      SCOPED_TRACE("rank " + std::to_string(rank) + ", request " + std::to_string(i));
      EXPECT_EQ(results[rank].completions[i].token_ids, results[0].completions[i].token_ids);
      EXPECT_EQ(results[rank].completions[i].logprobs, results[0].completions[i].logprobs);
      EXPECT_EQ(results[rank].completions[i].finish_reason, results[0].completions[i].finish_reason);
    }
  }
}

/// Returns every rank's result, after checking that OnToken received the same tokens and that all ranks
/// agree.
std::vector<infer::Generated> generated(const config::Config& config, const Tensors& full_weights,
                                        const std::vector<Request>& requests, int ranks,
                                        const infer::Batching& batching = {},
                                        at::ScalarType dtype = at::kDouble) {
  std::vector<infer::Generated> results(ranks);
  on_ranks(ranks, [&](const comm::Group& group) {
    const model::DecoderWeights weights(config, group, dtype);
    load_slices_(weights, full_weights);
    std::vector<Ids> reported(requests.size());
    results[group.rank()] =
        infer::generate(weights, requests, config.eos_token_id, batching, [&](size_t request, int64_t id) {
          reported[request].push_back(id);
          return true;
        });
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(reported[i], results[group.rank()].completions[i].token_ids);
  });
  expect_same_on_all(results);
  return results;
}

void expect_matches(const infer::Completion& result, const Request& request, const Expected& expected) {
  EXPECT_EQ(result.token_ids, expected.ids);
  ASSERT_EQ(result.logprobs.size(), request.wants_logprobs ? expected.logprobs.size() : 0);
  for (size_t i = 0; i < result.logprobs.size(); ++i)
    EXPECT_NEAR(result.logprobs[i], expected.logprobs[i], 1e-9);
}

/// Returns model variants that affect attention over a cache.
std::vector<std::pair<std::string, config::Config>> variants() {
  config::Config plain = small_config(), windowed = plain, normed = plain, learned = plain;
  windowed.sliding_window = 3;
  normed.qk_norm = true;
  learned.positions = config::Positions::learned;
  learned.norm = config::Norm::layer;
  return {{"plain", plain}, {"a window", windowed}, {"q/k norm", normed}, {"learned positions", learned}};
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
// do not divide.
TEST(GenerateOnEightRanks, MatchesTheReference) {
  at::set_num_threads(1);
  config::Config llama = small_config();
  llama.num_attention_heads = 32, llama.num_key_value_heads = 8, llama.head_dim = 64;
  config::Config gpt2 = small_config();
  gpt2.num_attention_heads = gpt2.num_key_value_heads = 12, gpt2.head_dim = 64;
  gpt2.norm = config::Norm::layer, gpt2.positions = config::Positions::learned;
  for (const config::Config& config : {llama, gpt2}) {
    SCOPED_TRACE(config.num_attention_heads);
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

/// The tokens that rounding allows at each step of a greedy sequence (docs/numerics.md §8).
struct GreedyRule {
  at::Tensor allowed;  // [tokens, v]: the exact logits' best, and those that rounding may put above it
  /// The steps at which only one token is allowed.
  int64_t decided() const { return allowed.sum(1).eq(1).sum().item<int64_t>(); }
  /// The number of steps before the first at which several tokens are allowed.
  int64_t decided_prefix() const {
    int64_t step = 0;
    while (step < allowed.size(0) && allowed[step].sum().item<int64_t>() == 1) ++step;
    return step;
  }
};

Tensors in_fp64(const Tensors& weights) {
  Tensors wide;
  for (const auto& [name, weight] : weights) wide[name] = weight.detach().to(at::kDouble).requires_grad_();
  return wide;
}

/// Returns by how much each logit is below the logit of `best` [tokens, 1] at each step, [tokens, v].
at::Tensor gaps_of(const at::Tensor& logits, const at::Tensor& best) {
  return logits.gather(1, best) - logits;
}

/// Returns the rule along `request`'s prompt and `tokens`: 8 times the root mean square by which random
/// roundings change a gap.
GreedyRule greedy_rule(const config::Config& config, const Tensors& weights, const Request& request,
                       const Ids& tokens, at::ScalarType dtype) {
  Ids text = request.prompt;
  text.insert(text.end(), tokens.begin(), tokens.end() - 1);
  const auto length = static_cast<int64_t>(text.size()), steps = static_cast<int64_t>(tokens.size());
  Batch batch{at::empty({length, 1}, at::kLong), at::full({length, 1}, 0, at::kLong), 1};
  std::copy(text.begin(), text.end(), batch.ids.mutable_data_ptr<int64_t>());
  const auto logits = [&](const Rounding& rounding) {
    return reference_step(config, weights, batch, /*masks=*/{}, rounding)
        .logits.select(1, 0)
        .narrow(0, length - steps, steps);
  };
  const at::Tensor exact = logits({}), best = exact.argmax(1, /*keepdim=*/true);
  const at::Tensor gaps = gaps_of(exact, best);
  at::Tensor squares = at::zeros_like(gaps);
  for (int sample = 0; sample < kSamples; ++sample)
    squares += (gaps_of(logits(Rounding(dtype, static_cast<uint64_t>(sample))), best) - gaps).square();
  return {gaps <= kTail * (squares / kSamples).sqrt()};
}

/// Returns requests for one token each, after each beginning of `tokens`.
std::vector<Request> forced(const Request& request, const Ids& tokens) {
  std::vector<Request> requests;
  Ids text = request.prompt;
  for (const int64_t token : tokens) {
    requests.push_back({text, 1, {}});
    text.push_back(token);
  }
  return requests;
}

/// How many steps were compared, at how many only one token is allowed, and how many chose TP=1's.
struct GreedySteps {
  int64_t all = 0, decided = 0, equal = 0;
  void add(const GreedySteps& other) { all += other.all, decided += other.decided, equal += other.equal; }
};

/// Generates on one rank and on `ranks`, freely and along the one rank's tokens, and checks each token.
GreedySteps compare_with_one_rank(const config::Config& config, at::ScalarType dtype, int ranks) {
  const Tensors weights = random_weights(config, /*seed=*/8, dtype);
  const Request request{{3, 16, 0}, 48, {}};
  const auto tokens = [&](const std::vector<Request>& requests, int count) {
    return generated(config, weights, requests, count, {}, dtype).at(0).completions;
  };
  const Ids expected = tokens({request}, 1)[0].token_ids, free = tokens({request}, ranks)[0].token_ids;
  const GreedyRule rule = greedy_rule(config, in_fp64(weights), request, expected, dtype);
  const auto along = tokens(forced(request, expected), ranks);
  GreedySteps steps{request.max_new_tokens, rule.decided(), 0};
  for (size_t step = 0; step < expected.size(); ++step) {
    const int64_t token = along[step].token_ids[0];
    for (const int64_t chosen : {token, expected[step]})
      EXPECT_TRUE(rule.allowed[int64_t(step)][chosen].item<bool>()) << "step " << step << ": " << chosen;
    steps.equal += token == expected[step];
  }
  const int64_t prefix = rule.decided_prefix();
  EXPECT_EQ(Ids(free.begin(), free.begin() + prefix), Ids(expected.begin(), expected.begin() + prefix));
  return steps;
}

// In bf16 another TP size may choose another token only where rounding may put it above the best.
TEST_P(Generate, GreedyTokensAreThoseOfOneRankUpToRounding) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    GreedySteps steps;
    for (const auto& variant : variants()) {
      SCOPED_TRACE(::testing::Message() << variant.first << ", " << dtype);
      config::Config config = variant.second;
      config.max_position_embeddings = 64;
      steps.add(compare_with_one_rank(config, dtype, GetParam()));
    }
    EXPECT_GT(2 * steps.decided, steps.all) << "the bound says nothing about most steps";
    std::printf("%s: one token allowed at %d of %d steps, TP=1's chosen at %d\n", c10::toString(dtype),
                int(steps.decided), int(steps.all), int(steps.equal));
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
