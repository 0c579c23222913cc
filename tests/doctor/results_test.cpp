#include "shardwise/doctor/results.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace shardwise::doctor::results_test {
namespace {

/// A reference, and two bf16 results that differ from it by rounding.
struct Case {
  at::Tensor reference, unsharded, sharded;
};

Case rounded(int seed) {
  at::manual_seed(seed);
  const at::Tensor reference = at::randn({64, 32}, at::kDouble);
  const auto stored = [&] {
    return (reference * (1 + at::randn(reference.sizes(), at::kDouble) * 0x1p-9)).to(at::kBFloat16);
  };
  return {reference, stored(), stored()};
}

double bound_of(const Case& c) {
  const Difference rounding = difference(c.unsharded, c.reference);
  return rounding_bound(rounding.largest, rounding.scale, at::kBFloat16);
}

TEST(Bound, AllowsRounding) {
  for (int seed = 0; seed < 100; ++seed) {
    const Case c = rounded(seed);
    EXPECT_LE(difference(c.sharded, c.reference).largest, bound_of(c)) << seed;
  }
}

/// One element differs by twenty times the largest rounding.
TEST(Bound, RejectsTwentyTimesTheRounding) {
  for (int seed = 0; seed < 100; ++seed) {
    const Case c = rounded(seed);
    const at::Tensor wrong = c.sharded.to(at::kDouble);
    wrong[13][7] += 20 * difference(c.unsharded, c.reference).largest;
    EXPECT_GT(difference(wrong, c.reference).largest, bound_of(c)) << seed;
  }
}

/// If TP=1 happens to be exact, the bound is derived from the rounding of the largest value.
TEST(Bound, IsNotZeroIfTheUnshardedModelIsExactByAccident) {
  EXPECT_EQ(rounding_bound(0, 3, at::kBFloat16), 8 * 3 * 0x1p-8);
  EXPECT_EQ(rounding_bound(0, 3, at::kFloat), 8 * 3 * 0x1p-24);
  EXPECT_EQ(rounding_bound(0.125, 3, at::kBFloat16), 1);
  EXPECT_EQ(rounding_bound(1, 3, at::kBFloat16), 1.5) << "zeros would trace";
}

/// Neither zeros nor twice the reference is within the bound.
TEST(Bound, RejectsZerosAndTwiceTheReference) {
  const Case c = rounded(1);
  EXPECT_GT(difference(at::zeros(c.reference.sizes(), at::kDouble), c.reference).largest, bound_of(c));
  EXPECT_GT(difference(c.reference * 2, c.reference).largest, bound_of(c));
  EXPECT_GT(difference(c.reference * (1 + 1e-9), c.reference).largest,
            fp64_bound(difference(c.reference, c.reference).scale));
  EXPECT_LE(difference(c.reference * (1 + 1e-14), c.reference).largest,
            fp64_bound(difference(c.reference, c.reference).scale));
}

TEST(Bound, RejectsNaNAndInf) {
  const at::Tensor reference = at::full({3}, 1.0, at::kDouble);
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const at::Tensor wrong = reference.clone();
    wrong[1] = bad;
    EXPECT_TRUE(std::isnan(difference(wrong, reference).largest));
    EXPECT_TRUE(std::isnan(difference(wrong, wrong).largest));
    EXPECT_FALSE(difference(wrong, reference).largest <= fp64_bound(1));
  }
}

TEST(Bound, AllowsEmptyTensors) {
  const at::Tensor empty = at::zeros({0, 4}, at::kDouble);
  EXPECT_LE(difference(empty, empty).largest, fp64_bound(difference(empty, empty).scale));
}

}  // namespace
}  // namespace shardwise::doctor::results_test
