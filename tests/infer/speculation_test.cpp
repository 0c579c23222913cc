// Generation with drafted tokens gives the tokens and the log probabilities that it gives without, bit for
// bit.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "tests/checkpoint/quantized_model.h"
#include "tests/infer/generated.h"
#include "tests/support/covering.h"
#include "tests/support/error_text.h"
#include "tests/support/extent.h"

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

struct Model {
  std::string name;
  config::Config config;
};

/// A generation with drafted tokens: of 5 requests, one by one or together. `end_ids` end some of them early.
struct Case {
  at::ScalarType dtype;
  int64_t sequences, drafted;
  std::vector<int64_t> end_ids;
};

const at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16};
const int64_t kSequences[] = {1, 5}, kDrafted[] = {1, 2, 3, 7, 15};
const std::vector<int64_t> kEndIds[] = {{}, {0, 4, 8}};

testing::Space space_of(const std::vector<Model>& models) {
  std::vector<std::string> names;
  for (const Model& model : models) names.push_back(model.name);
  testing::Space space;
  space.add("model", names);
  space.add("dtype", {"fp32", "bf16"});
  space.add("sequences", {"1", "5"});
  space.add("drafted", {"1", "2", "3", "7", "15"});
  space.add("end ids", {"none", "some"});
  return space;
}

class Speculation : public ::testing::TestWithParam<int> {
 protected:
  // Threads cost more than they save on tensors this small.
  static void SetUpTestSuite() { at::set_num_threads(1); }

  /// Compares a generation with the one without drafted tokens, on all ranks.
  void check(config::Config config, const Case& at) {
    config.max_position_embeddings = 64;
    on_ranks(GetParam(), [&](const comm::Group& group) {
      model::DecoderWeights weights(config, group, at.dtype, WeightUse::inference);
      weights.initialize_(/*seed=*/1);
      const Generated plain = infer::generate(weights, requests(), at.end_ids, {at.sequences, 512});
      const Generated speculative =
          infer::generate(weights, requests(), at.end_ids, {at.sequences, 512, at.drafted});
      EXPECT_EQ(plain.timings.drafted_tokens, 0);
      expect_same(speculative, plain);
      if (group.rank() != 0) return;
      accepted_ += speculative.timings.accepted_tokens;
      rejected_ += speculative.timings.drafted_tokens - speculative.timings.accepted_tokens;
    });
  }

  void check_all(const std::vector<Model>& models) {
    const testing::Space space = space_of(models);
    const auto combinations = testing::is_full()
                                  ? space.all()
                                  : testing::covering(space, /*strength=*/2,
                                                      /*seed=*/static_cast<unsigned>(GetParam()));
    for (const testing::Combination& at : combinations) {
      SCOPED_TRACE(space.name(at));
      check(models[at[0]].config, {kDtypes[at[1]], kSequences[at[2]], kDrafted[at[3]], kEndIds[at[4]]});
    }
    EXPECT_GT(accepted_, 0);
    EXPECT_GT(rejected_, 0);
    std::printf("covered: %zu generations with drafted tokens on %d ranks\n", combinations.size(),
                GetParam());
  }

 private:
  int64_t accepted_ = 0, rejected_ = 0;
};

TEST_P(Speculation, ChangesNoBitOfAnyVariant) {
  std::vector<Model> models;
  for (const auto& [name, config] : variants()) models.push_back({name, config});
  check_all(models);
}

TEST_P(Speculation, ChangesNoBitOfPackedWeights) {
  std::vector<Model> models;
  for (const int64_t bits : {0, 8, 4}) {
    config::Config config = wide_config("llama", /*is_tied=*/false);
    if (bits > 0) config.quantization = {.bits = bits, .group_size = 32, .lm_head = true, .int8_head = true};
    models.push_back({std::to_string(bits) + " bits", config});
  }
  check_all(models);
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
