#include "shardwise/infer/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "tests/support/error_text.h"

namespace shardwise::infer::sampler_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TokenLogits logits_of(const std::vector<double>& values) {
  TokenLogits candidates{{}, values};
  for (size_t id = 0; id < values.size(); ++id) candidates.ids.push_back(static_cast<int64_t>(id));
  return candidates;
}

TEST(SampleToken, TemperatureZeroIsGreedyWithTiesToTheLowestId) {
  EXPECT_EQ(sample_token(logits_of({1, 4, -2, 4, 3}), {.temperature = 0}, 0), 1);
  EXPECT_EQ(sample_token(logits_of({7}), {.temperature = 0}, 0), 0);
  EXPECT_EQ(sample_token(logits_of({-kInfinity, -5, -kInfinity}), {.temperature = 0}, 0), 1);
}

/// Checks that each token's count is `kDraws` times its share within five standard deviations of a binomial
/// count, and exactly 0 if its share is 0.
void expect_shares(const std::vector<double>& logits, const Sampling& sampling,
                   const std::vector<double>& weights) {
  constexpr int kDraws = 20'000;
  std::vector<int> drawn(logits.size());
  for (int position = 0; position < kDraws; ++position)
    ++drawn.at(sample_token(logits_of(logits), sampling, position));
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t id = 0; id < logits.size(); ++id) {
    const double share = weights[id] / sum;
    const double bound = 5 * std::sqrt(kDraws * share * (1 - share));
    EXPECT_NEAR(drawn[id], kDraws * share, bound) << "id " << id;
  }
}

TEST(SampleToken, FrequenciesMatchTheSoftmax) {
  const std::vector<double> logits = {0.5, -1, 2, 0, -kInfinity, 1};
  for (const double temperature : {0.5, 1.0, 3.0}) {
    std::vector<double> weights;
    for (const double logit : logits) weights.push_back(std::exp(logit / temperature));
    expect_shares(logits, {.temperature = temperature, .seed = 3}, weights);
  }
}

// Probabilities 0.4, 0.3, 0.15, 0.1, 0.05 in another order.
const std::vector<double> kShares = {0.1, 0.4, 0.05, 0.15, 0.3};

std::vector<double> logs_of(const std::vector<double>& shares) {
  std::vector<double> logs;
  for (const double share : shares) logs.push_back(std::log(share) + 2);  // any constant
  return logs;
}

TEST(SampleToken, TopKKeepsTheMostLikely) {
  const std::vector<double> logits = logs_of(kShares);
  expect_shares(logits, {.temperature = 1, .top_k = 1}, {0, 1, 0, 0, 0});
  expect_shares(logits, {.temperature = 1, .top_k = 3}, {0, 0.4, 0, 0.15, 0.3});
  expect_shares(logits, {.temperature = 1, .top_k = 99}, kShares);
  expect_shares({1, 1, 1, 1}, {.temperature = 1, .top_k = 2}, {1, 1, 0, 0});  // ties keep the lower ids
}

TEST(SampleToken, TopPKeepsTheFewestThatReachTheSum) {
  const std::vector<double> logits = logs_of(kShares);
  expect_shares(logits, {.temperature = 1, .top_p = 0.01}, {0, 1, 0, 0, 0});
  expect_shares(logits, {.temperature = 1, .top_p = 0.69}, {0, 0.4, 0, 0, 0.3});
  expect_shares(logits, {.temperature = 1, .top_p = 0.71}, {0, 0.4, 0, 0.15, 0.3});
  expect_shares(logits, {.temperature = 1, .top_p = 1}, kShares);
  // After top_k the probabilities are renormalized: 0.4 + 0.3 is 82 % of 0.85.
  expect_shares(logits, {.temperature = 1, .top_k = 3, .top_p = 0.8}, {0, 0.4, 0, 0, 0.3});
}

TEST(SampleToken, TopPKeepsTheFewestOfThousands) {
  const TokenLogits equal =
      logits_of(std::vector<double>(3000, 0));  // 2,000 of them reach two thirds of the sum
  int64_t highest = 0;
  for (int position = 0; position < 2000; ++position)
    highest = std::max(highest, sample_token(equal, {.temperature = 1, .top_p = 2.0 / 3 - 1e-9}, position));
  EXPECT_LT(highest, 2000);
  EXPECT_GT(highest, 1980);  // fails with a probability of (0.99)^2000
}

TEST(SampleToken, MinPDropsUnlikelyTokens) {
  const std::vector<double> logits = logs_of(kShares);
  expect_shares(logits, {.temperature = 1, .min_p = 0.3}, {0, 0.4, 0, 0.15, 0.3});
  expect_shares(logits, {.temperature = 1, .min_p = 0.9}, {0, 1, 0, 0, 0});
  // The temperature is applied first: at 2 it takes square roots, and √0.05 is 0.35 of √0.4.
  const double root = 0.5;
  std::vector<double> roots;
  for (const double share : kShares) roots.push_back(std::pow(share, root));
  expect_shares(logits, {.temperature = 2, .min_p = 0.3}, roots);
}

TEST(SampleToken, DependsOnSeedAndPositionAlone) {
  const TokenLogits logits = logits_of(std::vector<double>(100'000, 0));
  std::set<int64_t> seen;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    for (const int64_t position : {0L, 1L, 2L, 1L << 33}) {
      const Sampling sampling{.temperature = 1, .seed = seed << 40};
      const int64_t id = sample_token(logits, sampling, position);
      EXPECT_EQ(id, sample_token(logits, sampling, position));
      seen.insert(id);
    }
  }
  EXPECT_EQ(seen.size(), 16u);
}

TEST(SampleToken, RejectsNaNAndInf) {
  const auto error = [](const std::vector<double>& values, double temperature) {
    return test::error_text<c10::Error>(
        [&] { sample_token(logits_of(values), {.temperature = temperature}, 5); });
  };
  EXPECT_EQ(error({0, NAN}, 1), "generate: logits must be finite; got NaN at position 5");
  EXPECT_EQ(error({NAN, 0}, 0), "generate: logits must be finite; got NaN at position 5");
  EXPECT_EQ(error({0, kInfinity}, 1), "generate: logits must be finite; got inf at position 5");
  EXPECT_EQ(error({-kInfinity, -kInfinity}, 1), "generate: logits must be finite; got -inf at position 5");
}

}  // namespace
}  // namespace shardwise::infer::sampler_test
