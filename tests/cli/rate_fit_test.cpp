// The fit of two constants to measured parts, and its error on points that are left out.
#include "shardwise/bench/rate_fit.h"

#include <gtest/gtest.h>

namespace shardwise::bench::rate_fit_test {
namespace {

/// A part that computes and sends at these rates.
RatioPoint point(double flop, int64_t bytes, double flop_per_second, double bytes_per_second) {
  plan::PartCosts costs;
  costs.flop = flop;
  costs.collectives.all_reduce = {1, bytes};
  return {costs, flop / flop_per_second, static_cast<double>(bytes) / bytes_per_second};
}

TEST(RateFit, FindsTheRatesOfAConstantMachine) {
  const auto fit = fit_rates({point(1e9, 1000, 2e12, 3e9), point(5e9, 7000, 2e12, 3e9)});
  ASSERT_TRUE(fit);
  EXPECT_NEAR(fit->flop_per_second, 2e12, 1);
  EXPECT_NEAR(fit->bytes_per_second, 3e9, 1);
  ASSERT_EQ(fit->held_out_errors.size(), 2u);
  for (const double error : fit->held_out_errors) EXPECT_LT(error, 1e-12);
}

// Each of two points is predicted by the other: a rate that doubles is half or twice what is predicted.
TEST(RateFit, PredictsEveryPointWithoutIt) {
  const auto fit = fit_rates({point(1e9, 1000, 1e12, 2e9), point(1e9, 1000, 1e12, 4e9)});
  ASSERT_TRUE(fit);
  EXPECT_NEAR(fit->bytes_per_second, std::sqrt(8e18), 1);
  ASSERT_EQ(fit->held_out_errors.size(), 2u);
  EXPECT_NEAR(fit->held_out_errors[0], 0.5, 1e-12);
  EXPECT_NEAR(fit->held_out_errors[1], 1, 1e-12);
}

TEST(RateFit, OfNoOrOnePointHasNoError) {
  EXPECT_FALSE(fit_rates({}));
  EXPECT_TRUE(fit_rates({point(1, 1, 1, 1)})->held_out_errors.empty());
}

}  // namespace
}  // namespace shardwise::bench::rate_fit_test
