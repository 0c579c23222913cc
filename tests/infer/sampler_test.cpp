#include "shardwise/infer/sampler.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "tests/support/error_text.h"

namespace shardwise::infer {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor logits_of(const std::vector<double>& values) {
  return at::tensor(values, at::TensorOptions(at::kFloat));
}

TEST(ChooseToken, TemperatureZeroTakesTheLowestOfTheHighest) {
  EXPECT_EQ(choose_token(logits_of({1, 4, -2, 4, 3}), {.temperature = 0}, 0), 1);
  EXPECT_EQ(choose_token(logits_of({7}), {.temperature = 0}, 0), 0);
  EXPECT_EQ(choose_token(logits_of({-kInfinity, -5, -kInfinity}), {.temperature = 0}, 0), 1);
}

TEST(ChooseToken, DrawsEachTokenAsOftenAsTheSoftmaxSays) {
  const std::vector<double> logits = {0.5, -1, 2, 0, -kInfinity, 1};
  constexpr int kDraws = 20'000;
  for (const double temperature : {0.5, 1.0, 3.0}) {
    std::vector<int> drawn(logits.size());
    for (int position = 0; position < kDraws; ++position) {
      ++drawn.at(choose_token(logits_of(logits), {temperature, /*seed=*/3}, position));
    }
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit / temperature);
    for (size_t id = 0; id < logits.size(); ++id) {
      const double share = std::exp(logits[id] / temperature) / sum;
      // Five standard deviations of a binomial count.
      const double bound = 5 * std::sqrt(kDraws * share * (1 - share));
      EXPECT_NEAR(drawn[id], kDraws * share, bound) << "id " << id << " at " << temperature;
    }
  }
}

TEST(ChooseToken, DependsOnSeedAndPositionAlone) {
  const at::Tensor logits = at::full({100'000}, 0, at::kFloat);
  std::set<int64_t> seen;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    for (const int64_t position : {0L, 1L, 2L, 1L << 33}) {
      const int64_t id = choose_token(logits, {1, seed << 40}, position);
      EXPECT_EQ(id, choose_token(logits, {1, seed << 40}, position));
      seen.insert(id);
    }
  }
  EXPECT_EQ(seen.size(), 16u);
}

TEST(ChooseToken, IsTheSameForTheSameLogitsOfAnotherType) {
  const at::Tensor logits = logits_of({0.5, -1, 2, 0, 1});  // exact in bf16
  for (int position = 0; position < 50; ++position) {
    EXPECT_EQ(choose_token(logits, {1, 7}, position),
              choose_token(logits.to(at::kBFloat16), {1, 7}, position));
  }
}

TEST(ChooseToken, RefusesWhatIsNoNumber) {
  const auto said = [](const std::vector<double>& values, double temperature) {
    return test::error_text<c10::Error>([&] { choose_token(logits_of(values), {temperature, 0}, 5); });
  };
  EXPECT_EQ(said({0, NAN}, 1), "generate: logits must be numbers; got NaN at position 5");
  EXPECT_EQ(said({NAN, 0}, 0), "generate: logits must be numbers; got NaN at position 5");
  EXPECT_EQ(said({0, kInfinity}, 1), "generate: logits must be numbers; got inf at position 5");
  EXPECT_EQ(said({-kInfinity, -kInfinity}, 1), "generate: logits must be numbers; got -inf at position 5");
}

}  // namespace
}  // namespace shardwise::infer
