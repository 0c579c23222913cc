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

namespace shardwise::testing::generate_test {
namespace {

using Ids = std::vector<int64_t>;
using infer::Request;
using infer::Sampling;

/// Returns the reference's logits of the token after `text`, [v].
at::Tensor reference_logits(const model::Config& config, const Tensors& weights, const Ids& text) {
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

/// Generates token by token with the reference, recomputing the full sequence each time. No penalty.
Expected reference_tokens(const model::Config& config, const Tensors& weights, const Request& request) {
  Ids text = request.prompt;
  Expected expected;
  for (int64_t i = 0; i < request.max_new_tokens; ++i) {
    const at::Tensor logits = reference_logits(config, weights, text);
    const int64_t id =
        infer::sample_token(all_of(logits), request.sampling, static_cast<int64_t>(text.size()));
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
std::vector<infer::Generated> generated(const model::Config& config, const Tensors& full_weights,
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
std::vector<std::pair<std::string, model::Config>> variants() {
  model::Config plain = small_config(), windowed = plain, normed = plain, learned = plain;
  windowed.sliding_window = 3;
  normed.qk_norm = true;
  learned.positions = model::Positions::learned;
  learned.norm = model::Norm::layer;
  return {{"plain", plain}, {"a window", windowed}, {"q/k norm", normed}, {"learned positions", learned}};
}

class Generate : public ::testing::TestWithParam<int> {
 protected:
  // Threads cost more than they save on tensors this small.
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

TEST_P(Generate, MatchesTheReference) {
  for (const auto& [name, config] : variants()) {
    const Tensors weights = random_weights(config, /*seed=*/5, at::kDouble);
    std::vector<Request> requests{{{3, 16, 0}, 6, {}},
                                  {{3, 16, 0}, 6, {.temperature = 0.8, .seed = 1}},
                                  {{5}, 9, {.temperature = 1.5, .top_k = 4, .seed = 3}},
                                  {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 5, {}}};
    for (Request& request : requests) request.wants_logprobs = true;
    for (const auto& result : generated(config, weights, requests, GetParam())) {
      for (size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(name + ", request " + std::to_string(i));
        expect_matches(result.completions[i], requests[i], reference_tokens(config, weights, requests[i]));
      }
    }
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
  const model::Config config = small_config();
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

TEST_P(Generate, StopsAtAnEosToken) {
  model::Config config = small_config();
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
  const model::Config config = small_config();
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
  const model::Config config = small_config();
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

TEST(GenerateErrors, NameTheValueAndTheRule) {
  const model::DecoderWeights weights(small_config(), comm::Group(), at::kDouble);
  const auto error = [&](const Ids& prompt, int64_t count, const Sampling& sampling) {
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
}

TEST(GenerateErrors, NoneForZeroNewTokensAndNoRequests) {
  const model::DecoderWeights weights(small_config(), comm::Group(), at::kDouble);
  EXPECT_EQ(infer::generate(weights, {{{1}, 0, {}}}, {}).completions[0].token_ids, Ids{});
  EXPECT_TRUE(infer::generate(weights, {}, {}).completions.empty());
}

}  // namespace
}  // namespace shardwise::testing::generate_test
