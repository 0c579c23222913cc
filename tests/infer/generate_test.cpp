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

/// The reference's logits of the token after `text`, [v].
at::Tensor reference_logits(const model::Config& config, const Tensors& weights, const Ids& text) {
  const auto length = static_cast<int64_t>(text.size());
  Batch batch{at::empty({length, 1}, at::kLong), at::full({length, 1}, 0, at::kLong), 1};
  std::copy(text.begin(), text.end(), batch.ids.mutable_data_ptr<int64_t>());
  return reference_step(config, weights, batch, /*masks=*/{}).logits.select(0, -1).squeeze(0);
}

infer::Candidates all_of(const at::Tensor& logits) {
  infer::Candidates candidates;
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

/// Token by token, the whole text each time. No penalty.
Expected reference_tokens(const model::Config& config, const Tensors& weights, const Request& request) {
  Ids text = request.prompt;
  Expected expected;
  for (int64_t i = 0; i < request.max_new_tokens; ++i) {
    const at::Tensor logits = reference_logits(config, weights, text);
    const int64_t id =
        infer::choose_token(all_of(logits), request.sampling, static_cast<int64_t>(text.size()));
    text.push_back(id);
    expected.ids.push_back(id);
    expected.logprobs.push_back(logits.log_softmax(0)[id].item<double>());
  }
  return expected;
}

/// Ranks choose without asking one another: what one had otherwise in its last bit would part their texts.
void expect_same_on_all(const std::vector<infer::Generated>& results) {
  for (size_t rank = 1; rank < results.size(); ++rank) {
    for (size_t i = 0; i < results[0].texts.size(); ++i) {
      SCOPED_TRACE("rank " + std::to_string(rank) + ", request " + std::to_string(i));
      EXPECT_EQ(results[rank].texts[i].ids, results[0].texts[i].ids);
      EXPECT_EQ(results[rank].texts[i].logprobs, results[0].texts[i].logprobs);
      EXPECT_EQ(results[rank].texts[i].finish_reason, results[0].texts[i].finish_reason);
    }
  }
}

/// What every rank of `ranks` returns and is shown, the same bits on each.
std::vector<infer::Generated> generated(const model::Config& config, const Tensors& whole,
                                        const std::vector<Request>& requests, int ranks,
                                        const infer::Batching& batching = {},
                                        at::ScalarType dtype = at::kDouble) {
  std::vector<infer::Generated> results(ranks);
  on_ranks(ranks, [&](const comm::Group& group) {
    const model::DecoderWeights weights(config, group, dtype);
    load_slices_(weights, whole);
    std::vector<Ids> shown(requests.size());
    results[group.rank()] =
        infer::generate(weights, requests, config.eos_token_id, batching, [&](size_t request, int64_t id) {
          shown[request].push_back(id);
          return true;
        });
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(shown[i], results[group.rank()].texts[i].ids);
  });
  expect_same_on_all(results);
  return results;
}

void expect_follows(const infer::Completion& result, const Request& request, const Expected& expected) {
  EXPECT_EQ(result.ids, expected.ids);
  ASSERT_EQ(result.logprobs.size(), request.wants_logprobs ? expected.logprobs.size() : 0);
  for (size_t i = 0; i < result.logprobs.size(); ++i)
    EXPECT_NEAR(result.logprobs[i], expected.logprobs[i], 1e-9);
}

/// What attention over a cache must take account of, one or two at a time.
std::vector<std::pair<std::string, model::Config>> kinds() {
  model::Config plain = small_config(), windowed = plain, normed = plain, learned = plain;
  windowed.sliding_window = 3;
  normed.qk_norm = true;
  learned.positions = model::Positions::learned;
  learned.norm = model::Norm::layer;
  return {{"plain", plain}, {"a window", windowed}, {"q/k norm", normed}, {"learned positions", learned}};
}

class Generate : public ::testing::TestWithParam<int> {
 protected:
  // For tensors this small threads cost more than they bring.
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

TEST_P(Generate, FollowsTheReference) {
  for (const auto& [name, config] : kinds()) {
    const Tensors weights = random_weights(config, /*seed=*/5, at::kDouble);
    std::vector<Request> requests{{{3, 16, 0}, 6, {}},
                                  {{3, 16, 0}, 6, {.temperature = 0.8, .seed = 1}},
                                  {{5}, 9, {.temperature = 1.5, .top_k = 4, .seed = 3}},
                                  {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 5, {}}};
    for (Request& request : requests) request.wants_logprobs = true;
    for (const auto& result : generated(config, weights, requests, GetParam())) {
      for (size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(name + ", request " + std::to_string(i));
        expect_follows(result.texts[i], requests[i], reference_tokens(config, weights, requests[i]));
      }
    }
  }
}

/// Texts of full length with a number for each token.
void expect_whole(const infer::Generated& result, const std::vector<Request>& requests) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto& [ids, logprobs, finish] = result.texts[i];
    EXPECT_EQ(std::ssize(ids), requests[i].max_new_tokens);
    ASSERT_EQ(logprobs.size(), ids.size());
    for (const double logprob : logprobs) EXPECT_LE(logprob, 1e-12);
  }
}

// `generated` compares them. In the dtypes of use, where it shows in which order a sum was taken; choices
// from the best of each rank and from all logits, alone and in a batch.
TEST_P(Generate, EveryRankHasTheSameBits) {
  std::vector<Request> requests{{{3, 16, 0}, 8, {}},
                                {{5}, 12, {.temperature = 1.2, .seed = 2}},
                                {{1, 2, 3, 4, 5, 6, 7}, 9, {.temperature = 1.5, .top_k = 4, .seed = 3}},
                                {{9, 9}, 10, {.temperature = 0.9, .top_p = 0.8, .repetition_penalty = 1.3}}};
  for (Request& request : requests) request.wants_logprobs = true;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [name, config] : kinds()) {
      const Tensors weights = random_weights(config, /*seed=*/7, dtype);
      for (const infer::Batching batching : {infer::Batching{1, 512}, {3, 4}}) {
        SCOPED_TRACE(::testing::Message() << name << ", " << dtype << ", " << batching.texts << " texts");
        expect_whole(generated(config, weights, requests, GetParam(), batching, dtype).at(0), requests);
      }
    }
  }
}

// However many texts share a batch, and however their prompts are cut.
TEST_P(Generate, BatchesChangeNoToken) {
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
        SCOPED_TRACE(::testing::Message() << batching.texts << " texts, " << batching.rows << " rows, " << i);
        expect_follows(result.texts[i], requests[i], expected[i]);
      }
    }
  }
}

TEST_P(Generate, EndsWithATokenThatEndsTexts) {
  model::Config config = small_config();
  const Tensors weights = random_weights(config, /*seed=*/5, at::kDouble);
  const Request request{{1}, 6, {.temperature = 2, .seed = 9}};
  const Ids whole = reference_tokens(config, weights, request).ids;
  config.eos_token_id = {whole[4]};
  const auto end = std::find(whole.begin(), whole.end(), whole[4]) + 1;
  for (const auto& result : generated(config, weights, {request}, GetParam())) {
    EXPECT_EQ(result.texts[0].ids, Ids(whole.begin(), end));
    EXPECT_EQ(result.texts[0].finish_reason, infer::FinishReason::end);
  }
}

// Two all_reduces a layer and the embedding's; of the logits a few bytes a rank, not the vocabulary.
TEST_P(Generate, CommunicatesWhatItSays) {
  const int ranks = GetParam();
  const model::Config config = small_config();
  const Tensors whole = random_weights(config, /*seed=*/5, at::kDouble);
  on_ranks(ranks, [&](const comm::Group& group) {
    const model::DecoderWeights weights(config, group, at::kDouble);
    load_slices_(weights, whole);
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
    EXPECT_EQ(logprobs[comm::Op::all_gather].calls, 2 * gathers);  // sums too
    EXPECT_EQ(logprobs[comm::Op::all_gather].bytes, gathers * (ranks - 1) * (16 + 24));
    EXPECT_EQ(all[comm::Op::all_gather].calls, gathers);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Generate, ::testing::Values(1, 2, 3, 4));

TEST(GenerateAlone, StopsWhereTheCallerSaysAndFreesThePlace) {
  const model::Config config = small_config();
  model::DecoderWeights weights(config, comm::Group(), at::kDouble);
  weights.initialize_(3);
  int64_t seen = 0;
  const auto result = infer::generate(weights, {{{1, 2}, 9, {}}, {{3}, 2, {}}}, {}, {.texts = 1, .rows = 8},
                                      [&](size_t request, int64_t) { return request > 0 || ++seen < 3; });
  EXPECT_EQ(result.texts[0].ids.size(), 3u);
  EXPECT_EQ(result.texts[0].finish_reason, infer::FinishReason::stop);
  EXPECT_EQ(result.texts[1].ids.size(), 2u);
  EXPECT_EQ(result.texts[1].finish_reason, infer::FinishReason::length);
  EXPECT_EQ(result.timings.read_tokens, 3);
  EXPECT_EQ(result.timings.written_tokens, 3);  // the first of each came with its prompt
}

TEST(GenerateErrors, NameTheValueAndTheRule) {
  const model::DecoderWeights weights(small_config(), comm::Group(), at::kDouble);
  const auto said = [&](const Ids& prompt, int64_t count, const Sampling& sampling) {
    return test::error_text([&] { infer::generate(weights, {{prompt, count, sampling}}, {}); });
  };
  EXPECT_EQ(said({}, 1, {}), "generate: the prompt must hold a token; got none");
  EXPECT_EQ(said({0, 17}, 1, {}), "generate: the prompt's ids must lie from 0 to below 17; got 17");
  EXPECT_EQ(said({-1}, 1, {}), "generate: the prompt's ids must lie from 0 to below 17; got -1");
  EXPECT_EQ(said({1}, -1, {}), "generate: max_new_tokens must not be negative; got -1");
  EXPECT_EQ(said({1, 2}, 15, {}),
            "generate: prompt and new tokens must fit max_position_embeddings, 16; got 2 and 15");
  EXPECT_EQ(said({1}, 1, {.temperature = -0.5}), "generate: temperature must be 0 or more; got -0.5");
  EXPECT_EQ(said({1}, 1, {.temperature = NAN}), "generate: temperature must be 0 or more; got nan");
  EXPECT_EQ(said({1}, 1, {.top_k = -1}), "generate: top_k must be 0 (all) or more; got -1");
  EXPECT_EQ(said({1}, 1, {.top_p = 0}), "generate: top_p must lie in (0, 1]; got 0");
  EXPECT_EQ(said({1}, 1, {.min_p = 1.5}), "generate: min_p must lie in [0, 1]; got 1.5");
  EXPECT_EQ(said({1}, 1, {.repetition_penalty = 0}), "generate: repetition_penalty must be above 0; got 0");
  EXPECT_EQ(test::error_text([&] {
              infer::generate(weights, {{{1}, 1, {}}}, {}, {.texts = 0});
            }),
            "generate: a batch must hold a text and a token; got 0 and 512");
}

TEST(GenerateErrors, NoneForNothingToDo) {
  const model::DecoderWeights weights(small_config(), comm::Group(), at::kDouble);
  EXPECT_EQ(infer::generate(weights, {{{1}, 0, {}}}, {}).texts[0].ids, Ids{});
  EXPECT_TRUE(infer::generate(weights, {}, {}).texts.empty());
}

}  // namespace
}  // namespace shardwise::testing::generate_test
