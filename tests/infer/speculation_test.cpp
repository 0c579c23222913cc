// Generation with drafted tokens gives the tokens and the log probabilities that it gives without, bit for
// bit.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/checkpoint/quantized_model.h"
#include "tests/infer/generated.h"
#include "tests/support/error_text.h"

namespace shardwise::testing::speculation_test {
namespace {

using infer::Batching;
using infer::Generated;
using infer::Request;
using model::WeightUse;

/// Long enough that random models repeat themselves. One request has rules, so that the choice depends on
/// drafted tokens.
std::vector<Request> requests() {
  std::vector<Request> result{{{3, 16, 0}, 40, {}},
                              {{5}, 30, {.temperature = 0.7, .top_k = 4, .seed = 3}},
                              {{1, 2, 1, 2, 1, 2}, 25, {.temperature = 0.5, .seed = 4}},
                              {{9, 9, 9}, 35, {.repetition_penalty = 1.05}},
                              {{2, 7, 2}, 30, {}}};
  result.back().rules.no_repeat_ngram_size = 9;
  for (Request& request : result) request.wants_logprobs = true;
  return result;
}

void expect_same(const Generated& actual, const Generated& expected) {
  for (size_t i = 0; i < expected.completions.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    EXPECT_EQ(actual.completions[i].token_ids, expected.completions[i].token_ids);
    EXPECT_EQ(actual.completions[i].logprobs, expected.completions[i].logprobs);
    EXPECT_EQ(actual.completions[i].finish_reason, expected.completions[i].finish_reason);
  }
}

/// Compares every number of drafted tokens, for requests one by one and together. `end_ids` end some of them
/// early.
void expect_same_at_any_draft(const model::DecoderWeights& weights, const std::vector<int64_t>& end_ids) {
  for (const int64_t sequences : {1, 5}) {
    const Generated plain = infer::generate(weights, requests(), end_ids, {sequences, 512});
    EXPECT_EQ(plain.timings.drafted_tokens, 0);
    int64_t accepted = 0, rejected = 0;
    for (const int64_t drafted : {1, 2, 3, 7, 15}) {
      SCOPED_TRACE(::testing::Message() << drafted << " drafted, " << sequences << " sequences");
      const Generated speculative = infer::generate(weights, requests(), end_ids, {sequences, 512, drafted});
      expect_same(speculative, plain);
      accepted += speculative.timings.accepted_tokens;
      rejected += speculative.timings.drafted_tokens - speculative.timings.accepted_tokens;
    }
    if (weights.rows_with_equal_bits() <= sequences) continue;
    EXPECT_GT(accepted, 0);
    EXPECT_GT(rejected, 0);
  }
}

class Speculation : public ::testing::TestWithParam<int> {
 protected:
  // Threads cost more than they save on tensors this small.
  static void SetUpTestSuite() { at::set_num_threads(1); }

  void expect_same_in(config::Config config, at::ScalarType dtype) {
    config.max_position_embeddings = 64;
    on_ranks(GetParam(), [&](const comm::Group& group) {
      model::DecoderWeights weights(config, group, dtype, WeightUse::inference);
      weights.initialize_(/*seed=*/1);
      expect_same_at_any_draft(weights, {});
      expect_same_at_any_draft(weights, {0, 4, 8});
    });
  }
};

TEST_P(Speculation, ChangesNoBitOfAnyVariant) {
  for (const auto& [name, config] : variants()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << name << ", " << dtype);
      expect_same_in(config, dtype);
    }
  }
}

TEST_P(Speculation, ChangesNoBitOfPackedWeights) {
  config::Config config = wide_config("llama", /*is_tied=*/false);
  for (const int64_t bits : {0, 8, 4}) {
    if (bits > 0) config.quantization = {.bits = bits, .group_size = 32, .lm_head = true, .int8_head = true};
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << bits << " bits, " << dtype);
      expect_same_in(config, dtype);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Speculation, ::testing::Values(1, 2, 4));

TEST(SpeculationLimits, RefusesMoreThanAreAttendedOneByOne) {
  on_ranks(1, [](const comm::Group& group) {
    const model::DecoderWeights weights(small_config(), group, at::kFloat);
    for (const int64_t drafted : {int64_t{-1}, infer::kMostDrafted + 1}) {
      EXPECT_EQ(test::error_text<c10::ValueError>([&] {
                  infer::generate(weights, {{{1}, 1}}, {}, {.drafted = drafted});
                }),
                "generate: batching.drafted must be from 0 to 15; got " + std::to_string(drafted));
    }
  });
}

// The callback ends a sequence in the middle of accepted tokens.
TEST(SpeculationLimits, StopsWhereTheCallbackStops) {
  on_ranks(1, [](const comm::Group& group) {
    config::Config config = small_config();
    config.max_position_embeddings = 64;
    model::DecoderWeights weights(config, group, at::kFloat, WeightUse::inference);
    weights.initialize_(/*seed=*/1);
    for (int64_t length = 1; length <= 30; ++length) {
      Ids seen;
      const auto stop = [&](size_t, int64_t id) {
        seen.push_back(id);
        return std::ssize(seen) < length;
      };
      const Generated result = infer::generate(weights, {{{3, 16, 0}, 40}}, {}, {.drafted = 3}, stop);
      EXPECT_EQ(std::ssize(seen), length);
      EXPECT_EQ(result.completions[0].token_ids, seen);
    }
  });
}

}  // namespace
}  // namespace shardwise::testing::speculation_test
