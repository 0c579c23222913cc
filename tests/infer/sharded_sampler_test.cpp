// Sampling from vocab-sharded logits against sampling from the full row.
#include "shardwise/infer/sharded_sampler.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/error_text.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace shardwise::infer::sharded_sampler_test {
namespace {

using Ids = std::vector<int64_t>;
using testing::on_ranks;

/// Returns the tokens that every rank samples from its columns of `logits` [n, v].
std::vector<std::vector<SampledToken>> sample(const at::Tensor& logits,
                                              const std::vector<SamplingInput>& input, int ranks) {
  std::vector<std::vector<SampledToken>> sampled(ranks);
  on_ranks(ranks, [&](const comm::Group& group) {
    const auto vocab = base::Split::even("vocab", logits.size(1), group.size());
    const base::Range local = vocab.range(group.rank());
    sampled[group.rank()] = sample_tokens(logits.narrow(1, local.begin, local.size()), vocab, input, group);
  });
  return sampled;
}

/// Returns the logits with the repetition penalty and the rules, in a direct implementation.
std::vector<double> penalized(const at::Tensor& row, const SamplingInput& input) {
  const auto& [forced, forbidden] = input.choice;
  std::vector<double> logits;
  for (int64_t id = 0; id < row.size(0); ++id) {
    double logit = row[id].item<double>();
    const bool is_old = std::ranges::count(*input.tokens, id) > 0;
    if (is_old)
      logit *= logit > 0 ? 1 / input.sampling.repetition_penalty : input.sampling.repetition_penalty;
    if (!forced.empty()) logit = std::ranges::count(forced, id) > 0 ? 0 : -INFINITY;
    logits.push_back(std::ranges::count(forbidden, id) > 0 ? -INFINITY : logit);
  }
  return logits;
}

/// Returns the ids of the `count` highest values.
Ids sorted_descending(const at::Tensor& row, int64_t count) {
  const at::Tensor ids = row.argsort(/*dim=*/0, /*descending=*/true);
  return {ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + count};
}

int64_t best_of(const std::vector<double>& logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

TEST(SampleTokens, GreedySelectsTheBestOfAllRanks) {
  const Ids text{0, 3, 3, 9}, other{1};
  for (const int64_t v : {5, 17, 64}) {
    const at::Tensor logits =
        testing::random_tensor({2, v}, /*seed=*/static_cast<uint64_t>(v), at::kDouble) * 3;
    for (const double penalty : {1.0, 4.0}) {
      const std::vector<SamplingInput> input{{&text, {.repetition_penalty = penalty}, true},
                                             {&other, {}, true}};
      for (int ranks = 1; ranks <= 4; ++ranks) {
        for (const std::vector<SampledToken>& sampled : sample(logits, input, ranks)) {
          for (int64_t i = 0; i < 2; ++i) {
            const int64_t expected = best_of(penalized(logits[i], input[i]));
            EXPECT_EQ(sampled[i].id, expected);
            EXPECT_NEAR(sampled[i].logprob, logits[i].log_softmax(0)[expected].item<double>(), 1e-12);
          }
        }
      }
    }
  }
}

// Gathering a few candidates or all of them gives the same sample.
TEST(SampleTokens, SamplesTheSameTokenAtEveryTpSize) {
  const Ids text{2, 5};
  const at::Tensor logits = testing::random_tensor({1, 23}, /*seed=*/4, at::kDouble) * 2;
  for (const Sampling sampling :
       {Sampling{.temperature = 1, .top_k = 6, .top_p = 0.9, .repetition_penalty = 1.3},
        Sampling{.temperature = 0.7, .top_p = 0.8}, Sampling{.temperature = 2, .min_p = 0.1},
        Sampling{.temperature = 1, .top_k = 22}}) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
      SamplingInput input{&text, sampling};
      input.sampling.seed = seed;
      TokenLogits full{{}, penalized(logits[0], input)};
      for (int64_t id = 0; id < 23; ++id) full.ids.push_back(id);
      const int64_t expected = sample_token(full, input.sampling, /*position=*/2);
      for (int ranks = 1; ranks <= 4; ++ranks) {
        for (const auto& sampled : sample(logits, {input}, ranks)) EXPECT_EQ(sampled[0].id, expected);
      }
    }
  }
}

// 700 tokens: vectorized blocks on every rank. Logits are multiples of a half, so that many are equal; the
// first case's tokens have the highest logits, the last of them before the penalty.
TEST(SampleTokens, AppliesThePenaltyAndTheRulesAsADirectImplementation) {
  const int64_t v = 700;
  at::Tensor logits = (testing::random_tensor({1, v}, /*seed=*/6, at::kDouble) * 6).round() / 2;
  const Ids highest = sorted_descending(logits[0], 12);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const TokenChoice& choice : {TokenChoice{}, TokenChoice{{}, {highest[0], highest[1], 699, 699}},
                                      TokenChoice{{3, 350, 699}, {}}, TokenChoice{{3, 350, 699}, {3, 5}}}) {
      for (const double penalty : {1.0, 1.7, 0.5}) {
        for (const Sampling sampling :
             {Sampling{}, Sampling{.temperature = 1, .top_k = 3}, Sampling{.temperature = 1, .top_k = 40},
              Sampling{.temperature = 3}}) {
          SamplingInput input{&highest, sampling, /*wants_logprob=*/false, choice};
          input.sampling.repetition_penalty = penalty;
          TokenLogits full{{}, penalized(logits[0], input)};
          for (int64_t id = 0; id < v; ++id) full.ids.push_back(id);
          const int64_t expected = sample_token(full, input.sampling, std::ssize(highest));
          for (int ranks = 1; ranks <= 3; ++ranks) {
            for (const auto& sampled : sample(logits.to(dtype), {input}, ranks))
              EXPECT_EQ(sampled[0].id, expected);
          }
        }
      }
    }
  }
}

TEST(SampleTokens, TiesGiveTheLowestId) {
  const Ids text{0};
  const at::Tensor logits = at::tensor(std::vector<double>{1, 3, 2, 3, 3, 0}).view({1, 6});
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const auto& sampled : sample(logits, {{&text, {}}}, ranks)) EXPECT_EQ(sampled[0].id, 1);
  }
}

TEST(SampleTokens, TiesOfThePenaltyGiveTheLowestId) {
  for (const int64_t repeated : {1, 2}) {
    std::vector<double> values{0, 1, 1, 0};
    values[size_t(repeated)] = 2;
    const at::Tensor logits = at::tensor(values).view({1, 4});
    const Ids text{repeated};
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (const auto& sampled : sample(logits, {{&text, {.repetition_penalty = 2}}}, ranks))
        EXPECT_EQ(sampled[0].id, 1);
    }
  }
}

// Every rank throws, whichever rank has the NaN, so that no rank waits for one that left.
TEST(SampleTokens, NaNOnOneRankThrowsOnAllRanks) {
  const Ids text{0, 1};
  for (const Sampling sampling :
       {Sampling{}, Sampling{.temperature = 1}, Sampling{.temperature = 1, .top_k = 2}}) {
    for (const int64_t column : {0, 7}) {
      at::Tensor logits = testing::random_tensor({1, 8}, /*seed=*/1, at::kDouble);
      logits[0][column] = NAN;
      on_ranks(2, [&](const comm::Group& group) {
        const auto vocab = base::Split::even("vocab", 8, 2);
        const at::Tensor local = logits.narrow(1, vocab.range(group.rank()).begin, 4);
        EXPECT_EQ(test::error_text<c10::Error>([&] {
                    sample_tokens(local, vocab, {{&text, sampling}}, group);
                  }),
                  "generate: logits must be finite; got NaN at position 2");
      });
    }
  }
}

// Includes ranks with an empty vocabulary shard and logits of −inf.
TEST(SampleTokens, NeverSamplesMinusInfinity) {
  const Ids text{0};
  const double none = -std::numeric_limits<double>::infinity();
  const at::Tensor logits = at::tensor(std::vector<double>{none, -4, none}).view({1, 3});
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const Sampling sampling :
         {Sampling{}, Sampling{.temperature = 1, .top_k = 2}, Sampling{.temperature = 1}}) {
      for (const auto& sampled : sample(logits, {{&text, sampling, true}}, ranks)) {
        EXPECT_EQ(sampled[0].id, 1);
        EXPECT_NEAR(sampled[0].logprob, 0, 1e-15);
      }
    }
  }
}

}  // namespace
}  // namespace shardwise::infer::sharded_sampler_test
