#include "shardwise/doctor/bound.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace shardwise::doctor::bound_test {
namespace {

/// A truth, and what two programs make of it that store it in bf16 after adding it up in another order each.
struct Case {
  at::Tensor truth, unsharded, sharded;
};

Case rounded(int seed) {
  at::manual_seed(seed);
  const at::Tensor truth = at::randn({64, 32}, at::kDouble);
  const auto stored = [&] {
    return (truth * (1 + at::randn(truth.sizes(), at::kDouble) * 0x1p-9)).to(at::kBFloat16);
  };
  return {truth, stored(), stored()};
}

double bound_of(const Case& c) {
  const Difference rounding = difference(c.unsharded, c.truth);
  return rounding_bound(rounding.largest, rounding.scale, at::kBFloat16);
}

TEST(Bound, HoldsForRounding) {
  for (int seed = 0; seed < 100; ++seed) {
    const Case c = rounded(seed);
    EXPECT_LE(difference(c.sharded, c.truth).largest, bound_of(c)) << seed;
  }
}

/// One element off by twenty times the largest rounding.
TEST(Bound, IsBrokenByTwentyTimesTheRounding) {
  for (int seed = 0; seed < 100; ++seed) {
    const Case c = rounded(seed);
    const at::Tensor off = c.sharded.to(at::kDouble);
    off[13][7] += 20 * difference(c.unsharded, c.truth).largest;
    EXPECT_GT(difference(off, c.truth).largest, bound_of(c)) << seed;
  }
}

/// TP=1 happens to be exact: the bound is then what storing the largest value can change.
TEST(Bound, IsNotZeroWhereTheUnshardedModelIsRightByAccident) {
  EXPECT_EQ(rounding_bound(0, 3, at::kBFloat16), 8 * 3 * 0x1p-8);
  EXPECT_EQ(rounding_bound(0, 3, at::kFloat), 8 * 3 * 0x1p-24);
  EXPECT_EQ(rounding_bound(0.125, 3, at::kBFloat16), 1);
  EXPECT_EQ(rounding_bound(1, 3, at::kBFloat16), 1.5) << "zeros would pass";
}

/// A tensor of zeros in place of the truth is never within a bound, nor is the truth twice.
TEST(Bound, IsNoWiderThanTheTruth) {
  const Case c = rounded(1);
  EXPECT_GT(difference(at::zeros(c.truth.sizes(), at::kDouble), c.truth).largest, bound_of(c));
  EXPECT_GT(difference(c.truth * 2, c.truth).largest, bound_of(c));
  EXPECT_GT(difference(c.truth * (1 + 1e-9), c.truth).largest,
            exact_bound(difference(c.truth, c.truth).scale));
  EXPECT_LE(difference(c.truth * (1 + 1e-14), c.truth).largest,
            exact_bound(difference(c.truth, c.truth).scale));
}

TEST(Bound, IsNeverHeldByWhatIsNoNumber) {
  const at::Tensor truth = at::full({3}, 1.0, at::kDouble);
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const at::Tensor off = truth.clone();
    off[1] = bad;
    EXPECT_TRUE(std::isnan(difference(off, truth).largest));
    EXPECT_TRUE(std::isnan(difference(off, off).largest));
    EXPECT_FALSE(difference(off, truth).largest <= exact_bound(1));
  }
}

TEST(Bound, OfNothingIsHeld) {
  const at::Tensor empty = at::zeros({0, 4}, at::kDouble);
  EXPECT_LE(difference(empty, empty).largest, exact_bound(difference(empty, empty).scale));
}

}  // namespace
}  // namespace shardwise::doctor::bound_test
